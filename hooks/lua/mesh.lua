-- Tells slurm-mesh of submissions, from job_submit.lua and cli_filter.lua: appends a line to a file, and does nothing else. No process, no
-- socket, no waiting. Whatever goes wrong in here, no error leaves it: the functions return nothing and raise nothing.
-- mesh-hook takes the lines at the next call of a hook, `smesh hooks flush --watch` within a second.
--
-- A line: `1 KIND SECONDS USER JOB`, with KIND submit, modify or cli; SECONDS since 1970; USER a name or uid; JOB an id, `-` where there
-- is none yet. Lua 5.1 to 5.4.

-- As `lines` in hook.toml; `smesh hooks install` writes it. On a tmpfs: slurmctld and sbatch wait for what is written here.
local FOLDER = "/run/slurm-mesh/lines"
-- A file that nobody takes must not fill the disk.
local LIMIT = 1048576

local mesh = {}

local function append(file, kind, user, job)
  local name = tostring(user):gsub("[^%w._-]", "_"):sub(1, 64)
  local line = string.format("1 %s %d %s %s\n", kind, os.time(), name == "" and "-" or name, job)
  -- "a" is O_APPEND, and a line is shorter than the buffer: one write, so lines of two processes never mix.
  -- A file that is not there is not made: mesh-hook makes it where it may be, in memory, and users' where it can fill nothing else.
  local seen, _, errno = io.open(FOLDER .. "/" .. file, "r")
  if seen then
    seen:close()
  elseif errno == 2 then
    return
  end
  local handle = io.open(FOLDER .. "/" .. file, "a")
  if handle then
    handle:setvbuf("full", 4096)
    if handle:seek("end") < LIMIT then
      handle:write(line)
    end
    handle:close()
  end
end

-- For slurm_job_submit: the job has no id yet.
function mesh.submitted(submit_uid)
  pcall(append, "job_submit.lines", "submit", submit_uid, "-")
end

-- For slurm_job_modify: hold, release, and every other change that somebody asks for.
function mesh.modified(job_rec, modify_uid)
  pcall(function()
    append("job_submit.lines", "modify", modify_uid, string.format("%d", job_rec.job_id))
  end)
end

-- For slurm_cli_post_submit, which srun calls for every step, too: those of a running job tell nothing new. For sbatch and salloc the step
-- is one of Slurm's high numbers (seen on 22.05, 24.11 and 26.05).
function mesh.post_submit(job_id, step_id)
  pcall(function()
    if step_id >= 4294967280 or not os.getenv("SLURM_JOB_ID") then
      append("users/cli_filter.lines", "cli", os.getenv("USER") or "-", string.format("%d", job_id))
    end
  end)
end

return mesh
