//! Routes, requests and the expected answers.

/// A request and the expected status per caller, in this order: over TCP without a token, with a wrong token, the owner, another user,
/// the coordinator of the account, an auditor, an administrator; over the Unix socket another user, and root.
pub type Row = (&'static str, &'static str, [u16; 9]);

/// Every authenticated caller. Other tests check what each of them sees.
pub const ALL: [u16; 9] = [401, 401, 200, 200, 200, 200, 200, 200, 200];
/// Callers who may see alice's job 7 of the account physics.
pub const ALICES: [u16; 9] = [401, 401, 200, 404, 200, 200, 200, 404, 200];
/// Does not exist for any caller.
pub const MISSING: [u16; 9] = [401, 401, 404, 404, 404, 404, 404, 404, 404];
/// Every authenticated caller gets a description of the fault.
pub const WRONG: [u16; 9] = [401, 401, 400, 400, 400, 400, 400, 400, 400];
/// Callers who may query alice's data.
pub const ABOUT_ALICE: [u16; 9] = [401, 401, 200, 403, 200, 200, 200, 403, 200];
/// Callers with a Unix user. Service tokens without one have no jobs of their own.
pub const WITH_A_UNIX_USER: [u16; 9] = [401, 401, 200, 200, 403, 403, 403, 200, 200];
pub const WATCHERS: [u16; 9] = [401, 401, 403, 403, 403, 200, 200, 403, 200];
/// Nothing is there, as those who may see it learn.
pub const FOR_WATCHERS: [u16; 9] = [401, 401, 403, 403, 403, 404, 404, 403, 404];
pub const ADMINS: [u16; 9] = [401, 401, 403, 403, 403, 403, 200, 403, 200];
/// Every authenticated caller learns that the body is missing.
pub const WITHOUT_BODY: [u16; 9] = [401, 401, 400, 400, 400, 400, 400, 400, 400];
pub const OPEN: [u16; 9] = [200; 9];
/// Callers who may replay events to the operator's endpoint. For users it does not exist.
pub const TO_THE_OPERATORS: [u16; 9] = [401, 401, 400, 400, 400, 403, 201, 400, 201];

/// Route and its row. The test fails if a route of the routers has no row.
pub const MATRIX: &[(&str, Row)] = &[
    ("/livez", ("GET", "/livez", OPEN)),
    // Without Slurm it is not ready, and any caller may know.
    ("/readyz", ("GET", "/readyz", [503; 9])),
    ("/metrics", ("GET", "/metrics", WATCHERS)),
    ("/v1/whoami", ("GET", "/v1/whoami", ALL)),
    ("/v1/events", ("GET", "/v1/events", ALL)),
    ("/v1/events", ("GET", "/v1/events?user=alice", ABOUT_ALICE)),
    ("/v1/events/export", ("GET", "/v1/events/export", ALL)),
    (
        "/v1/events/export",
        ("GET", "/v1/events/export?user=alice", ABOUT_ALICE),
    ),
    ("/v1/events/stats", ("GET", "/v1/events/stats", ALL)),
    (
        "/v1/events/stats",
        ("GET", "/v1/events/stats?user=alice", ABOUT_ALICE),
    ),
    ("/v1/kpis", ("GET", "/v1/kpis", ALL)),
    ("/v1/kpis", ("GET", "/v1/kpis?user=alice", ABOUT_ALICE)),
    (
        "/v1/events/openapi.json",
        ("GET", "/v1/events/openapi.json", ALL),
    ),
    (
        "/v1/nodes/{cluster}/{node}",
        ("GET", "/v1/nodes/testbed/n1", MISSING),
    ),
    (
        "/v1/jobs/{cluster}/{job}",
        ("GET", "/v1/jobs/testbed/7", ALICES),
    ),
    (
        "/v1/jobs/{cluster}/{job}",
        ("GET", "/v1/jobs/testbed/8", MISSING),
    ),
    ("/v1/ledger/head", ("GET", "/v1/ledger/head", ALL)),
    (
        "/v1/ledger/checkpoint",
        ("GET", "/v1/ledger/checkpoint", ALL),
    ),
    (
        "/v1/ledger/checkpoints",
        ("GET", "/v1/ledger/checkpoints", ALL),
    ),
    (
        "/v1/ledger/proof/inclusion",
        ("GET", "/v1/ledger/proof/inclusion?seq=1", ALL),
    ),
    (
        "/v1/ledger/proof/consistency",
        ("GET", "/v1/ledger/proof/consistency?from=1", ALL),
    ),
    ("/v1/ledger/keys", ("GET", "/v1/ledger/keys", ALL)),
    ("/v1/ledger/keys", ("POST", "/v1/ledger/keys", ADMINS)),
    // A complete ledger has nothing to resume.
    ("/v1/ledger/resume", ("POST", "/v1/ledger/resume", ADMINS)),
    // The signature is the proof, so any caller may submit it.
    (
        "/v1/ledger/contradictions",
        ("POST", "/v1/ledger/contradictions", WRONG),
    ),
    ("/v1/ledger/export", ("GET", "/v1/ledger/export", WATCHERS)),
    ("/v1/replays", ("GET", "/v1/replays", ALL)),
    // An empty request. Authorized callers get a description of the fault.
    ("/v1/replays", ("POST", "/v1/replays", WRONG)),
    ("/v1/replays/{id}", ("GET", "/v1/replays/x", MISSING)),
    ("/v1/replays/{id}", ("DELETE", "/v1/replays/x", MISSING)),
    ("/v1/costs", ("GET", "/v1/costs", ALL)),
    ("/v1/costs", ("GET", "/v1/costs?user=alice", ABOUT_ALICE)),
    ("/v1/costs/me", ("GET", "/v1/costs/me", WITH_A_UNIX_USER)),
    (
        "/v1/costs/focus",
        ("GET", "/v1/costs/focus?period=2025-11", ALL),
    ),
    ("/v1/costs/periods", ("GET", "/v1/costs/periods", WATCHERS)),
    (
        "/v1/costs/periods/{period}",
        ("GET", "/v1/costs/periods/2025-10", FOR_WATCHERS),
    ),
    (
        "/v1/costs/periods/{period}",
        ("POST", "/v1/costs/periods/2025-10", ADMINS),
    ),
    ("/v1/costs/nodes", ("GET", "/v1/costs/nodes", WATCHERS)),
    ("/v1/costs/live", ("GET", "/v1/costs/live", ALL)),
    (
        "/v1/costs/live",
        ("GET", "/v1/costs/live?user=alice", ABOUT_ALICE),
    ),
    (
        "/v1/costs/openapi.json",
        ("GET", "/v1/costs/openapi.json", ALL),
    ),
    ("/v1/budgets", ("GET", "/v1/budgets", ALL)),
    ("/v1/budgets/{name}", ("GET", "/v1/budgets/x", MISSING)),
    // Without a body.
    ("/v1/budgets", ("POST", "/v1/budgets", WITHOUT_BODY)),
    ("/v1/budgets/{name}", ("DELETE", "/v1/budgets/x", MISSING)),
    ("/v1/queue", ("GET", "/v1/queue", ALL)),
    (
        "/v1/queue/openapi.json",
        ("GET", "/v1/queue/openapi.json", ALL),
    ),
    // No start was estimated.
    (
        "/v1/queue/quality",
        ("GET", "/v1/queue/quality?cluster=testbed", MISSING),
    ),
    (
        "/v1/queue/{cluster}/{job}",
        ("GET", "/v1/queue/testbed/99", MISSING),
    ),
    // Off by default.
    (
        "/v1/queue/{cluster}/listing",
        ("GET", "/v1/queue/testbed/listing", MISSING),
    ),
    // The explainer's tests check the answers. Here the requests have no body.
    (
        "/v1/queue/{cluster}/what-if",
        ("POST", "/v1/queue/testbed/what-if", WITHOUT_BODY),
    ),
    (
        "/v1/queue/{cluster}/{job}/what-if",
        ("POST", "/v1/queue/testbed/99/what-if", WITHOUT_BODY),
    ),
    ("/v1/webhooks", ("GET", "/v1/webhooks", ALL)),
    // The dispatcher's tests check who may create which endpoint. Here the request has no body.
    ("/v1/webhooks", ("POST", "/v1/webhooks", WITHOUT_BODY)),
    (
        "/v1/webhooks/openapi.json",
        ("GET", "/v1/webhooks/openapi.json", ALL),
    ),
    ("/v1/webhooks/{name}", ("GET", "/v1/webhooks/x", MISSING)),
    (
        "/v1/webhooks/{name}",
        ("PATCH", "/v1/webhooks/x", WITHOUT_BODY),
    ),
    ("/v1/webhooks/{name}", ("DELETE", "/v1/webhooks/x", MISSING)),
    (
        "/v1/webhooks/{name}/deliveries",
        ("GET", "/v1/webhooks/x/deliveries", MISSING),
    ),
    (
        "/v1/webhooks/{name}/deliveries/{id}",
        ("GET", "/v1/webhooks/x/deliveries/y", MISSING),
    ),
    (
        "/v1/webhooks/{name}/redeliver",
        ("POST", "/v1/webhooks/x/redeliver", MISSING),
    ),
    (
        "/v1/webhooks/{name}/redeliveries",
        ("GET", "/v1/webhooks/x/redeliveries", MISSING),
    ),
    (
        "/v1/webhooks/{name}/pause",
        ("POST", "/v1/webhooks/x/pause", MISSING),
    ),
    (
        "/v1/webhooks/{name}/resume",
        ("POST", "/v1/webhooks/x/resume", MISSING),
    ),
    (
        "/v1/webhooks/{name}/rotate",
        ("POST", "/v1/webhooks/x/rotate", MISSING),
    ),
    (
        "/v1/webhooks/preview",
        ("POST", "/v1/webhooks/preview", WITHOUT_BODY),
    ),
    (
        "/v1/webhooks/{name}/test",
        ("POST", "/v1/webhooks/x/test", MISSING),
    ),
    ("/no/such/route", ("GET", "/no/such/route", MISSING)),
];
