-- Every node that had a change has a row here, so `nodes` is not used any more.
INSERT INTO node_partitions (cluster, node, at, seq, partitions) SELECT cluster, node, 0, 0, '' FROM nodes WHERE true ON CONFLICT DO NOTHING;
