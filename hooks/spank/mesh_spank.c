/* SPANK plugin of slurm-mesh: `--mesh-notify` of sbatch, salloc and srun. ADR 29, docs/guide/hooks.md.
 *
 * For a job with that option it tells `mesh-hook --listen` when a step starts and ends on a node, and how its tasks
 * ended: one datagram on a Unix socket. slurmstepd never waits for it and never fails because of it: no allocation,
 * no lock, no file, and every error is ignored. Without the option it does nothing at all.
 *
 * It must be built for the release of Slurm that loads it: 22.05.8 loads one that was built for 22.05.7, not for 23.02. */
#include <slurm/slurm_version.h>
#include <slurm/spank.h>

#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

SPANK_PLUGIN(mesh, 1);

/* The Slurm that this was built for, which `smesh doctor` reads from the file. */
__attribute__((used)) static const struct {
  char mark[32];
  unsigned char version[3];
} built_for = {"slurm-mesh: built for Slurm",
               {SLURM_VERSION_MAJOR(SLURM_VERSION_NUMBER), SLURM_VERSION_MINOR(SLURM_VERSION_NUMBER),
                SLURM_VERSION_MICRO(SLURM_VERSION_NUMBER)}};

/* Where `mesh-hook --listen` listens unless plugstack.conf has socket=PATH. */
#define DEFAULT_SOCKET "/run/slurm-mesh/spank.sock"
/* Elsewhere a path may lead to a file system that hangs, and looking it up would wait. */
#define LOCAL_PREFIX "/run/"
#define SOCKET_OPTION "socket="
/* Failed tasks that are named. More are only counted. */
#define MAX_FAILURES 64
/* The step that only holds the job's processes of pam_slurm_adopt; 0xfffffffc in slurm.h. */
#define EXTERN_STEP 0xfffffffcU

/* What the user asks for. */
enum { ON_START = 1, ON_EXIT = 2, ON_FAIL = 4 };
static const struct {
  const char *name;
  unsigned wish;
} wishes[] = {{"start", ON_START}, {"exit", ON_EXIT}, {"fail", ON_FAIL}};

struct failure {
  uint32_t task;
  int status;
};

/* slurmstepd serves one step and calls plugins from one thread. */
static unsigned wished;
static struct sockaddr_un address = {.sun_family = AF_UNIX, .sun_path = DEFAULT_SOCKET};
static uint32_t ended, failed, lost;
static struct failure failures[MAX_FAILURES];

/* A comma-separated list of wishes; 0 if it has a word that is none. */
static unsigned parse(const char *text) {
  unsigned found = 0;
  for (;;) {
    size_t length = strcspn(text, ",");
    unsigned wish = 0;
    for (size_t n = 0; n < sizeof wishes / sizeof *wishes; n++)
      if (strlen(wishes[n].name) == length && strncmp(text, wishes[n].name, length) == 0)
        wish = wishes[n].wish;
    if (wish == 0)
      return 0;
    found |= wish;
    if (text[length] == '\0')
      return found;
    text += length + 1;
  }
}

/* A word that is none is reported to the user and ignored: this plugin fails no submission. */
static int on_option(int value, const char *argument, int remote) {
  (void)value;
  if (argument == NULL || *argument == '\0')
    argument = "exit";
  wished = parse(argument);
  if (wished == 0 && !remote)
    slurm_spank_log("--mesh-notify=%.64s ignored: start, exit, fail, or several with commas", argument);
  return ESPANK_SUCCESS;
}

static struct spank_option option = {
    .name = "mesh-notify",
    .arginfo = "start,exit,fail",
    .usage = "have slurm-mesh tell you of the steps on each node: start, exit (default), fail",
    .has_arg = 2,
    .val = 0,
    .cb = on_option,
};

static uint32_t number(spank_t spank, spank_item_t item) {
  uint32_t value = 0;
  return spank_get_item(spank, item, &value) == ESPANK_SUCCESS ? value : 0;
}

/* Appends to a text that ends with '\0'; what does not fit is left out whole. */
#define APPEND(text, length, ...)                                                      \
  do {                                                                                 \
    int more = snprintf((text) + (length), sizeof(text) - (length), __VA_ARGS__);      \
    if (more > 0 && (size_t)more < sizeof(text) - (length))                            \
      (length) += (size_t)more;                                                        \
  } while (0)

/* 1 MOMENT MILLISECONDS JOB STEP UID NODE TASKS ENDED FAILED LOST[ TASK:CODE:SIGNAL]... */
static void report(spank_t spank, const char *moment) {
  char text[2048];
  size_t length = 0;
  struct timespec now = {0};
  uid_t uid = (uid_t)-1;
  uint32_t step = number(spank, S_JOB_STEPID);
  if (step == EXTERN_STEP)
    return;
  clock_gettime(CLOCK_REALTIME, &now);
  if (spank_get_item(spank, S_JOB_UID, &uid) != ESPANK_SUCCESS)
    return;
  APPEND(text, length, "1 %s %lld %u %u %u %u %u %u %u %u", moment,
         (long long)now.tv_sec * 1000 + now.tv_nsec / 1000000, (unsigned)number(spank, S_JOB_ID),
         (unsigned)step, (unsigned)uid, (unsigned)number(spank, S_JOB_NODEID),
         (unsigned)number(spank, S_JOB_LOCAL_TASK_COUNT), (unsigned)ended, (unsigned)failed, (unsigned)lost);
  for (uint32_t n = 0; n < failed && n < MAX_FAILURES; n++) {
    int status = failures[n].status;
    APPEND(text, length, " %u:%d:%d", (unsigned)failures[n].task, WIFEXITED(status) ? WEXITSTATUS(status) : 0,
           WIFSIGNALED(status) ? WTERMSIG(status) : 0);
  }
  int error = errno;
  int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  ssize_t sent = fd < 0 ? -1
                        : sendto(fd, text, length, MSG_DONTWAIT | MSG_NOSIGNAL, (struct sockaddr *)&address,
                                 sizeof address);
  if (sent < 0)
    lost++;
  if (fd >= 0)
    close(fd);
  errno = error;
}

static void configure(int argc, char **argv) {
  for (int n = 0; n < argc; n++) {
    if (strncmp(argv[n], SOCKET_OPTION, strlen(SOCKET_OPTION)) != 0)
      continue;
    const char *path = argv[n] + strlen(SOCKET_OPTION);
    if (strncmp(path, LOCAL_PREFIX, strlen(LOCAL_PREFIX)) == 0 && strlen(path) < sizeof address.sun_path)
      snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
    else
      slurm_error("mesh: %s%s ignored: not a path below " LOCAL_PREFIX, SOCKET_OPTION, path);
  }
}

int slurm_spank_init(spank_t spank, int argc, char **argv) {
  spank_context_t context = spank_context();
  if (context == S_CTX_LOCAL || context == S_CTX_ALLOCATOR || context == S_CTX_REMOTE)
    spank_option_register(spank, &option);
  if (context == S_CTX_REMOTE)
    configure(argc, argv);
  return ESPANK_SUCCESS;
}

/* slurmstepd, as root, before the tasks exist. Options are known from here on. */
int slurm_spank_init_post_opt(spank_t spank, int argc, char **argv) {
  (void)argc, (void)argv;
  if (spank_context() == S_CTX_REMOTE && (wished & ON_START))
    report(spank, "start");
  return ESPANK_SUCCESS;
}

/* slurmstepd, as root, for each task that has ended. */
int slurm_spank_task_exit(spank_t spank, int argc, char **argv) {
  (void)argc, (void)argv;
  int status = 0;
  if (wished == 0 || spank_get_item(spank, S_TASK_EXIT_STATUS, &status) != ESPANK_SUCCESS)
    return ESPANK_SUCCESS;
  ended++;
  if (status == 0)
    return ESPANK_SUCCESS;
  if (failed < MAX_FAILURES)
    failures[failed] = (struct failure){number(spank, S_TASK_GLOBAL_ID), status};
  failed++;
  if (failed == 1 && (wished & ON_FAIL))
    report(spank, "task");
  return ESPANK_SUCCESS;
}

/* slurmstepd, as root, after all tasks of the step on this node. */
int slurm_spank_exit(spank_t spank, int argc, char **argv) {
  (void)argc, (void)argv;
  if (spank_context() == S_CTX_REMOTE && ((wished & ON_EXIT) || ((wished & ON_FAIL) && failed > 0)))
    report(spank, "exit");
  return ESPANK_SUCCESS;
}
