-- Functions and operators that a query may call instead of one of PostgreSQL's, one line each. Executed with no other schema than
-- pg_catalog in the search path, so that none of them has a say in it. Those of extensions are not made by an owner of tables.
WITH places AS (
    SELECT oid FROM pg_namespace WHERE nspname::text IN ? AND nspname <> 'pg_catalog'::name
)
SELECT format('function %s', p.oid::regprocedure) AS line
FROM pg_proc p JOIN places ON places.oid = p.pronamespace
WHERE EXISTS (SELECT FROM pg_proc b WHERE b.pronamespace = 'pg_catalog'::regnamespace AND b.proname = p.proname)
  AND NOT EXISTS (SELECT FROM pg_depend d WHERE d.classid = 'pg_proc'::regclass AND d.objid = p.oid AND d.deptype = 'e')
UNION ALL
SELECT format('operator %s', o.oid::regoperator)
FROM pg_operator o JOIN places ON places.oid = o.oprnamespace
WHERE EXISTS (SELECT FROM pg_operator b WHERE b.oprnamespace = 'pg_catalog'::regnamespace AND b.oprname = o.oprname)
  AND NOT EXISTS (SELECT FROM pg_depend d WHERE d.classid = 'pg_operator'::regclass AND d.objid = o.oid AND d.deptype = 'e')
ORDER BY line
LIMIT 1
