-- Everything that decides what a query on the ledger's tables answers, one line each, with the months of partitions left out. Views and
-- tables of others in the same schema are not the ledger's, unless they inherit, refer to or cover one of its tables.
WITH ours AS (
    SELECT c.oid, c.relname, c.relkind, c.relpersistence, c.relrowsecurity, c.relispartition
    FROM pg_class c
    WHERE c.relnamespace = current_schema()::regnamespace
      AND (c.relname IN ('entries', 'payloads', 'event_index', 'event_nodes', 'head', 'streams', 'streams_ahead', 'holes', 'subtrees',
              'checkpoints', 'checkpoint_keys', 'archives', 'replays', '_sqlx_migrations')
          OR c.oid IN (SELECT inhrelid FROM pg_inherits WHERE inhparent = to_regclass('payloads'))
          OR (c.relkind IN ('v', 'm')
              AND NOT EXISTS (SELECT FROM pg_depend d WHERE d.objid = c.oid AND d.deptype = 'e')))
      AND c.relkind IN ('r', 'p', 'v', 'm', 'f')
), lines AS (
    SELECT format('relation %s kind %s persistence %s row security %s partition %s', relname, relkind, relpersistence, relrowsecurity,
        relispartition) AS line FROM ours
    UNION ALL
    SELECT format('shadowed %s', relname) FROM ours WHERE to_regclass(quote_ident(relname)) IS DISTINCT FROM oid::regclass
    UNION ALL
    SELECT format('column %s.%s %s %s null %s default %s generated %s', o.relname, a.attname, format_type(a.atttypid, a.atttypmod),
        (SELECT CASE WHEN l.oid < 16384 AND l.collisdeterministic AND l.collprovider IN ('c', 'd') THEN l.collname::text
             ELSE format('%s of schema %s, provider %s, deterministic %s', l.collname, l.collnamespace::regnamespace, l.collprovider,
                 l.collisdeterministic) END
         FROM pg_collation l WHERE l.oid = a.attcollation), NOT a.attnotnull, pg_get_expr(d.adbin, d.adrelid), a.attgenerated)
    FROM ours o JOIN pg_attribute a ON a.attrelid = o.oid AND a.attnum > 0 AND NOT a.attisdropped
    LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
    UNION ALL
    SELECT format('constraint %s on %s: %s, valid %s', c.conname, COALESCE(o.relname, 'another table'), pg_get_constraintdef(c.oid, true),
        c.convalidated)
    FROM pg_constraint c LEFT JOIN ours o ON o.oid = c.conrelid
    WHERE c.contype <> 'n' AND (o.oid IS NOT NULL OR c.confrelid IN (SELECT oid FROM ours))
    UNION ALL
    SELECT format('index %s, valid %s, ready %s, live %s', pg_get_indexdef(i.indexrelid, 0, true), i.indisvalid, i.indisready, i.indislive)
    FROM pg_index i JOIN ours o ON o.oid = i.indrelid
    UNION ALL
    SELECT format('trigger %s, enabled %s', pg_get_triggerdef(t.oid, true), t.tgenabled)
    FROM pg_trigger t JOIN ours o ON o.oid = t.tgrelid WHERE NOT t.tgisinternal
    UNION ALL
    SELECT format('rule %s on %s: %s, enabled %s', r.rulename, o.relname, pg_get_ruledef(r.oid, true), r.ev_enabled)
    FROM pg_rewrite r JOIN ours o ON o.oid = r.ev_class
    UNION ALL
    SELECT format('policy %s on %s', p.polname, o.relname) FROM pg_policy p JOIN ours o ON o.oid = p.polrelid
    UNION ALL
    SELECT format('%s inherits %s', i.inhrelid::regclass, i.inhparent::regclass)
    FROM pg_inherits i JOIN ours o ON o.oid = i.inhparent
    UNION ALL
    SELECT format('function %s, language %s, settings %s, security definer %s, %s', proname,
        (SELECT lanname FROM pg_language WHERE oid = prolang),
        replace(array_to_string(proconfig, '; '), 'search_path=' || quote_ident(current_schema()) || ',', 'search_path=<schema>,'), prosecdef, md5(prosrc))
    FROM pg_proc WHERE pronamespace = current_schema()::regnamespace AND proname LIKE 'ledger\_%'
    UNION ALL
    -- Settings of the database or of a role that switch triggers off, or let reads leave something out. With another schema before
    -- pg_catalog, an operator or a type of it may stand for one of PostgreSQL's.
    SELECT format('setting %s of role %s', value, setrole)
    FROM pg_db_role_setting, unnest(setconfig) AS value
    WHERE setdatabase IN (0, (SELECT oid FROM pg_database WHERE datname = current_database()))
      AND (split_part(value, '=', 1) IN ('session_replication_role', 'zero_damaged_pages', 'ignore_checksum_failure', 'ignore_system_indexes',
              'transform_null_equals')
          OR value ~* '^search_path=.*,\s*"?pg_catalog"?\s*(,|$)')
)
SELECT regexp_replace(line, 'payloads_[0-9]{4}_[0-9]{2}', 'payloads_<month>', 'g') AS line, COUNT(*) AS count
FROM lines GROUP BY 1
