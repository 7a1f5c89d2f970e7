-- Changes of nodes, for what each second of a node was paid for.
CREATE TABLE node_states (
    cluster TEXT NOT NULL,
    node TEXT NOT NULL,
    -- Unix seconds.
    at BIGINT NOT NULL,
    -- Number of the event among those of the node.
    seq BIGINT NOT NULL,
    state TEXT NOT NULL,
    -- Empty if unknown.
    instance_id TEXT NOT NULL,
    -- First partition of the node. Empty if it has none.
    partition_name TEXT NOT NULL,
    PRIMARY KEY (cluster, node, at, seq)
);
