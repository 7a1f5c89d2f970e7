-- Every node that had a change.
CREATE TABLE nodes (
    cluster TEXT NOT NULL,
    node TEXT NOT NULL,
    PRIMARY KEY (cluster, node)
);

-- Changes of nodes, for the category of each second.
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
