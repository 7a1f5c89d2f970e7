use event_message::format::Format;
use secrecy::ExposeSecret as _;
use url::Host;

use super::*;
use crate::attempt::retry::RetryPolicy;

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

fn section(text: &str) -> Config {
    let file: toml::Table = toml::from_str(&format!("[webhook-dispatcher]\n{text}")).unwrap();
    file["webhook-dispatcher"].clone().try_into().unwrap()
}

fn validate(text: &str) -> Result<Vec<Endpoint>, Vec<String>> {
    let read = |path: &Path| match path.to_str() {
        Some("good") => Ok(format!("{SECRET}\n")),
        _ => Err(std::io::ErrorKind::NotFound.into()),
    };
    section(text)
        .validate(read)
        .map_err(|faults| faults.iter().map(ToString::to_string).collect())
}

fn check(endpoint: &str, expected: &str) {
    let text = format!(
        "[[webhook-dispatcher.endpoints]]\nname = \"e\"\nurl = \"https://example.org\"\nsecret = \"{SECRET}\"\n{endpoint}"
    );
    match validate(&text) {
        Ok(_) => panic!("accepted: {endpoint}"),
        Err(faults) => {
            assert_eq!(faults.len(), 1, "{faults:?}");
            assert!(
                faults[0].starts_with(&format!("webhook-dispatcher endpoint \"e\": {expected}")),
                "{faults:?}"
            );
        }
    }
}

#[test]
fn the_default_file_says_what_the_defaults_are() {
    let file: toml::Table = toml::from_str(DEFAULTS).unwrap();
    let written: Config = file["webhook-dispatcher"].clone().try_into().unwrap();
    assert_eq!(format!("{written:?}"), format!("{:?}", Config::default()));
    let keys = file["webhook-dispatcher"].as_table().unwrap().len();
    assert_eq!(keys, 22, "every key is in the file");
}

#[test]
fn the_default_schedule_takes_about_three_days() {
    let config = Config::default();
    let policy = RetryPolicy {
        max_attempts: config.max_attempts,
        intervals: config.retry,
        max_retry_after: config.max_retry_after,
        give_up_after: None,
    };
    // Full jitter waits half of each bound on average.
    let hours = (1..policy.max_attempts)
        .map(|attempt| policy.intervals.bound(attempt).as_secs())
        .sum::<u64>()
        / 2
        / 3600;
    assert!((60..=84).contains(&hours), "{hours} h");
}

#[test]
fn a_sound_endpoint_is_accepted() {
    let endpoints = validate(
        r#"
        allow_subnets = ["10.0.0.0/8"]
        [[webhook-dispatcher.endpoints]]
        name = "pipeline"
        url = "https://10.1.2.3:8443/hook?key=hidden"
        secret_file = "good"
        types = ["job.*", "cost.finalized"]
        timeout = "2s"
        [[webhook-dispatcher.endpoints]]
        name = "chat"
        url = "https://hooks.slack.com/services/T0/B0/hidden"
        format = "slack"
        "#,
    )
    .unwrap();
    assert_eq!(endpoints[0].redacted_url(), "https://10.1.2.3:8443/hook");
    assert_eq!(
        (endpoints[0].timeout, endpoints[0].max_event_age),
        (Duration::from_secs(2), None)
    );
    assert_eq!(endpoints[1].redacted_url(), "https://hooks.slack.com/…");
    assert_eq!(endpoints[1].max_event_age, Some(Duration::from_secs(3600)));
}

#[test]
fn each_fault_names_endpoint_and_key() {
    check("rate_limit = \"fast\"", "rate_limit: \"fast\" is no rate");
    check("burst = 2", "burst: needs a rate_limit");
    check("rate_limit = \"1/s\"\nburst = 0", "burst: from 1 to 10000");
    check("success = [\"ok\"]", "success: \"ok\" is no HTTP status");
    check(
        "success = [\"2xx\"]\nformat = \"slack\"",
        "success: only for the formats cloudevents and template",
    );
    check("give_up_after = \"0s\"", "give_up_after: above 0");
    check(
        "types = [\"job.exploded\"]",
        "types: unknown event type \"job.exploded\"",
    );
    check("types = [\"jobs.*\"]", "types: unknown");
    check(
        "allow_private = [\"10.0.0.0\"]",
        "allow_private: \"10.0.0.0\" is no subnet",
    );
    check("max_attempts = 0", "max_attempts: at least 1");
    check("timeout = \"0s\"", "timeout: above 0");
    check("retry = { multiplier = 0 }", "retry.multiplier: at least 1");
    check("concurrency = 0", "concurrency: from 1");
    check(
        "users = [\"alice\"]\ntypes = [\"node.down\"]",
        "users: no event can match",
    );
    check("secret_file = \"good\"", "secret: given twice");
    check("url_file = \"good\"", "url: given twice");
}

#[test]
fn outcomes_are_stored_as_long_as_the_stream_keeps_events() {
    assert!(validate("retention = \"14d\"").is_ok());
    let faults = validate("retention = \"13d\"").err().unwrap();
    assert!(
        faults[0].starts_with("webhook-dispatcher.retention: at least 14days"),
        "{faults:?}"
    );
}

#[test]
fn every_fault_is_reported_at_once() {
    let faults = validate(
        r#"
        allow_subnets = ["everything"]
        [[webhook-dispatcher.endpoints]]
        name = "a"
        url = "http://example.org"
        secret = "whsec_c2hvcnQ="
        [[webhook-dispatcher.endpoints]]
        name = "a"
        url = "https://127.0.0.1/"
        secret = "whsec_!"
        [[webhook-dispatcher.endpoints]]
        url = "nonsense"
        secret_file = "missing"
        [[webhook-dispatcher.endpoints]]
        name = "d"
        url = "ftp://example.org"
        "#,
    )
    .err()
    .unwrap();
    insta::assert_snapshot!(faults.join("\n"));
}

#[test]
fn formats_have_settings_of_their_own_and_their_faults_name_them() {
    let endpoints = validate(
        r#"
        [[webhook-dispatcher.endpoints]]
        name = "pager"
        format = { type = "pagerduty", routing_key = { file = "good" } }
        [[webhook-dispatcher.endpoints]]
        name = "teams"
        url = "https://prod-1.westeurope.logic.azure.com/workflows/1?sig=hidden"
        format = "teams"
        [[webhook-dispatcher.endpoints]]
        name = "ci"
        [webhook-dispatcher.endpoints.format]
        type = "github"
        token = { file = "good" }
        repository = "physics/pipeline"
        "#,
    )
    .unwrap();
    let addresses: Vec<_> = endpoints.iter().map(Endpoint::redacted_url).collect();
    assert_eq!(
        addresses,
        [
            "https://events.pagerduty.com/v2/enqueue",
            "https://prod-1.westeurope.logic.azure.com/…",
            "https://api.github.com/"
        ]
    );
    let Format::PagerDuty(settings) = &endpoints[0].format else {
        panic!("no PagerDuty")
    };
    assert_eq!(settings.routing_key.expose(), SECRET);
    assert!(
        endpoints[0]
            .filter
            .selects(mesh_events::EventType::NodeDown)
    );
    assert!(
        !endpoints[0]
            .filter
            .selects(mesh_events::EventType::JobFailed)
    );
    check(
        "format = { type = \"pagerduty\", routing_key = { file = \"none\" } }",
        "routing_key: read none: ",
    );
    check(
        "format = { type = \"github\", token = \"t\", repository = \"x\" }",
        "repository: owner/name",
    );
    check(
        "format = { type = \"template\", body = \"{{ job.nam }}\" }",
        "body: line 1, column 4: undefined value",
    );
    let old = "[[webhook-dispatcher.endpoints]]\nname = \"e\"\nurl = \"https://x.webhook.office.com/webhookb2/1\"\nformat = \"teams\"";
    assert!(validate(old).err().unwrap()[0].contains("connectors are retired"));
}

#[test]
fn a_condition_is_checked_when_it_is_read() {
    check(
        "when = \"job.exit_cod > 1\"",
        "when: character 1: no field \"job.exit_cod\"; there are array_job_id",
    );
    check(
        "types = [\"job.*\"]\nwhen = \"cost.total > 5\"",
        "when: cost is known of cost.* events only",
    );
    let sound = format!(
        "[[webhook-dispatcher.endpoints]]\nname = \"e\"\nurl = \"https://example.org\"\nsecret = \"{SECRET}\"\nwhen = \"job.exit_code > 1\""
    );
    assert!(validate(&sound).is_ok());
}

#[test]
fn an_endpoint_overrides_single_keys_of_a_table() {
    let text = format!(
        "[webhook-dispatcher.retry]\ninitial_interval = \"20s\"\nmax_interval = \"1h\"\n\
         [[webhook-dispatcher.endpoints]]\nname = \"e\"\nurl = \"https://example.org\"\nsecret = \"{SECRET}\"\n\
         retry = {{ multiplier = 2, max_interval = \"2h\" }}\ncircuit_breaker = {{ failure_threshold = 3 }}\n"
    );
    let endpoint = validate(&text).unwrap().remove(0);
    let policy = endpoint.policy;
    assert_eq!(
        (
            policy.intervals.initial_interval,
            policy.intervals.multiplier,
            policy.intervals.max_interval
        ),
        (Duration::from_secs(20), 2, Duration::from_secs(2 * 60 * 60))
    );
    assert_eq!(endpoint.rules.circuit.failure_threshold, 3);
}

#[test]
fn a_chat_without_types_gets_what_needs_somebody_and_one_with_types_what_they_say() {
    use mesh_events::EventType::{
        JobCancelled, JobFailed, JobHeld, JobPreempted, JobRequeued, JobStarted, QueueExplained,
    };
    use mesh_events::proto::mesh::event::v1::{Actor, ActorKind};

    let filter = |more: &str| {
        let text = format!(
            "[[webhook-dispatcher.endpoints]]\nname = \"e\"\nurl = \"https://example.org/x\"\nformat = \"slack\"\n{more}"
        );
        validate(&text).unwrap().remove(0).filter
    };
    let mut cancelled = event_filter::sample::event(JobCancelled);
    cancelled.actor = Some(Actor {
        kind: ActorKind::User.into(),
        ..Actor::default()
    });
    let all = "types = [\"job.*\", \"queue.explained\"]";
    // The sample's job was pending for a minute.
    for (more, kinds) in [
        ("", vec![QueueExplained, JobFailed]),
        (
            "pending_threshold = \"0s\"",
            vec![QueueExplained, JobFailed, JobStarted],
        ),
        (
            all,
            vec![
                QueueExplained,
                JobFailed,
                JobStarted,
                JobHeld,
                JobRequeued,
                JobCancelled,
            ],
        ),
    ] {
        let filter = filter(more);
        for kind in [QueueExplained, JobFailed, JobStarted, JobHeld, JobRequeued] {
            let event = event_filter::sample::event(kind).into();
            let gets = filter.matches(kind, &event);
            assert_eq!(gets, kinds.contains(&kind), "{kind} with {more:?}");
        }
        let gets = filter.matches(JobCancelled, &cancelled.clone().into());
        assert_eq!(gets, kinds.contains(&JobCancelled), "{more:?}");
        let preempted = event_filter::sample::event(JobPreempted).into();
        assert!(filter.matches(JobPreempted, &preempted), "{more:?}");
    }
}

fn network(text: &str) -> Result<Network, Vec<String>> {
    let file: toml::Table = toml::from_str(text).unwrap();
    let config: Config = file.try_into().unwrap();
    let read = |path: &Path| match path.to_str() {
        Some("login") => Ok("mesh:s3:cret\n".to_owned()),
        Some("nonsense") => Ok("nonsense".to_owned()),
        _ => Err(std::io::ErrorKind::NotFound.into()),
    };
    config
        .network(read, read)
        .map_err(|faults| faults.iter().map(ToString::to_string).collect())
}

#[test]
fn what_is_written_is_what_is_meant() {
    let plain = network("").unwrap();
    assert!(plain.authorities.is_empty() && plain.dns_servers.is_empty());
    assert!(plain.proxy.is_none());
    let network = network(
        "dns_servers = [\"10.0.0.53\", \"[fd00::53]:5353\"]\n[proxy]\nurl = \"http://proxy.example.org:3128\"\n\
         credentials_file = \"login\"\nno_proxy = [\"ci.example.org\"]",
    )
    .unwrap();
    let servers: Vec<String> = network
        .dns_servers
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(servers, ["10.0.0.53:53", "[fd00::53]:5353"]);
    let proxy = network.proxy.unwrap();
    assert_eq!(proxy.to_string(), "proxy.example.org:3128");
    let (user, password) = proxy.credentials.unwrap();
    assert_eq!(
        (user.as_str(), password.expose_secret()),
        ("mesh", "s3:cret")
    );
    assert!(proxy.bypass.has(&Host::Domain("ci.example.org")));
}

#[test]
fn every_fault_names_its_key_and_no_password() {
    let faults = network(
        "ca_file = \"nonsense\"\ndns_servers = [\"dns.example.org\"]\n[proxy]\nurl = \"http://mesh:s3cret@proxy.example.org:3128\"\n\
         credentials_file = \"missing\"\nno_proxy = [\"a b\"]",
    )
    .err()
    .unwrap();
    let keys: Vec<&str> = faults
        .iter()
        .map(|fault| fault.split(": ").next().unwrap_or_default())
        .collect();
    assert_eq!(
        keys,
        [
            "webhook-dispatcher.ca_file",
            "webhook-dispatcher.dns_servers",
            "webhook-dispatcher.proxy.no_proxy",
            "webhook-dispatcher.proxy.credentials_file",
            "webhook-dispatcher.proxy.url"
        ]
    );
    assert!(!faults.concat().contains("s3cret"), "{faults:?}");
    for url in [
        "https://proxy:3128",
        "socks5://proxy",
        "proxy:3128",
        "http://mesh:s3cret@:1",
    ] {
        let faults = network(&format!("[proxy]\nurl = \"{url}\"")).err().unwrap();
        assert_eq!(
            faults,
            ["webhook-dispatcher.proxy.url: http://host:port is needed"]
        );
    }
    let twice = "[proxy]\ncredentials = \"a:b\"\ncredentials_file = \"login\"";
    assert!(network(twice).err().unwrap()[0].contains("given twice"));
    let half = "[proxy]\ncredentials = \"s3cret\"";
    assert_eq!(
        network(half).err().unwrap(),
        ["webhook-dispatcher.proxy.credentials: user:password is needed"]
    );
}
