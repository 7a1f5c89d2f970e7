//! Tests connections to PostgreSQL: verified TLS, and durable commits regardless of the settings of
//! server, database and role.

use std::path::{Path, PathBuf};
use std::time::Duration;

use futures_util::FutureExt as _;
use ledger::{Location, Store};
use mesh_db::pool::{Access, Pool};
use mesh_db::sql::Sql;
use mesh_db::{Limits, Tables};
use mesh_events::EventType;
use mesh_testkit::{Postgres, fixtures, psql};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use sqlx::migrate::Migrator;

use crate::roles::of_role;
use crate::support::{Database, Outsider, record};

static NO_TABLES: Tables = Tables {
    name: "test",
    sqlite: Migrator::DEFAULT,
    postgres: Migrator::DEFAULT,
    first: "numbers",
    remedy: "",
};

/// Creates a certificate authority for the test.
fn authority(name: &str) -> CertifiedIssuer<'static, KeyPair> {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

fn pem(folder: &Path, authority: &CertifiedIssuer<'_, KeyPair>, name: &str) -> PathBuf {
    let path = folder.join(name);
    std::fs::write(&path, authority.pem()).unwrap();
    path
}

async fn append(store: &Store, job: u32) -> Result<(), ledger::Error> {
    let event = fixtures::job_event(EventType::JobStarted, fixtures::job(job));
    let records = vec![record(&event)];
    store.append("SLURM_EVENTS", job.into(), records).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_is_verified_by_certificate_and_name() {
    let folder = tempfile::tempdir().unwrap();
    let (right, wrong) = (authority("right"), authority("wrong"));
    let key = KeyPair::generate().unwrap();
    let certificate = CertificateParams::new(vec!["localhost".to_owned()])
        .and_then(|params| params.signed_by(&key, &right))
        .unwrap();
    let server = Postgres::start_tls(&certificate.pem(), &key.serialize_pem()).await;
    let database = Database::of(&server);
    psql(
        &database.url,
        "CREATE ROLE mesh LOGIN PASSWORD 's3cret'; ALTER SCHEMA public OWNER TO mesh;
         CREATE VIEW sessions AS SELECT ssl FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) WHERE usename = 'mesh'",
    );
    let right = pem(folder.path(), &right, "right.pem");
    let wrong = pem(folder.path(), &wrong, "wrong.pem");
    let name = database.location().to_string();
    let name = name.rsplit_once('/').unwrap().1;
    let address = |host: &str, mode: &str, authority: &Path| {
        let (port, authority) = (server.port(), authority.display());
        let url = format!(
            "postgres://mesh:s3cret@{host}:{port}/{name}?sslmode={mode}&sslrootcert={authority}"
        );
        Location::parse(&url, Path::new("")).unwrap()
    };
    let mut outsider = database.outsider().await;
    for (host, mode, authority) in [
        ("localhost", "verify-full", &wrong),
        ("localhost", "verify-ca", &wrong),
        // The same server, but its certificate does not have this name.
        ("127.0.0.1", "verify-full", &right),
    ] {
        let error = Store::open(&address(host, mode, authority), 1).await;
        let text = mesh_runtime::error_chain(&error.unwrap_err());
        assert!(text.contains("certificate"), "{host} {mode}: {text}");
        assert!(!text.contains("s3cret"), "{text}");
    }
    let all = "SELECT COUNT(*) FROM sessions";
    assert_eq!(outsider.numbers(all).await, [0], "nobody logged in");
    for (host, mode) in [("localhost", "verify-full"), ("127.0.0.1", "verify-ca")] {
        let store = Store::open(&address(host, mode, &right), 1).await.unwrap();
        append(&store, 1).await.unwrap();
        assert_eq!(store.head().await.unwrap().seq, 1);
        // In one statement, as sessions end at any time.
        let counts =
            "SELECT COUNT(*) FILTER (WHERE NOT ssl) * 100 + LEAST(COUNT(*), 2) FROM sessions";
        let found = outsider.numbers(counts).await;
        assert_eq!(
            found,
            [2],
            "none in the clear; it writes by one and reads by another"
        );
        store.close().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_is_durable_whatever_server_database_and_role_say() {
    // The server's default setting is not durable.
    let superuser = Database::of(Postgres::shared().await);
    let name = superuser.location().to_string();
    let name = name.rsplit_once('/').unwrap().1;
    psql(
        &superuser.url,
        &format!(
            "CREATE ROLE lazy LOGIN; ALTER SCHEMA public OWNER TO lazy; ALTER ROLE lazy SET synchronous_commit = off;
             ALTER DATABASE {name} SET synchronous_commit = off"
        ),
    );
    let lazy = of_role(&superuser, "lazy");
    let query = "SELECT current_setting('synchronous_commit')";
    assert_eq!(lazy.outsider().await.texts(query).await, ["off"]);

    // Each appending transaction records its commit setting.
    let store = lazy.store().await;
    psql(
        &superuser.url,
        "CREATE TABLE said (setting TEXT, session INTEGER);
         CREATE FUNCTION say() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$ BEGIN
             INSERT INTO said VALUES (current_setting('synchronous_commit'), pg_backend_pid()); RETURN NULL; END $$;
         CREATE CONSTRAINT TRIGGER say AFTER INSERT ON entries DEFERRABLE INITIALLY DEFERRED
             FOR EACH ROW EXECUTE FUNCTION say()",
    );
    let mut outsider = superuser.outsider().await;
    let mut job = 0;
    // Through both connections: one for events, one for the audit.
    while scalar(&mut outsider, "COUNT(DISTINCT session)").await < 2 {
        assert!(job < 1_000, "two at once never took two connections");
        let (one, two) = tokio::join!(append(&store, job + 1), append(&store, job + 2));
        one.and(two).unwrap();
        job += 2;
    }
    assert_eq!(scalar(&mut outsider, "COUNT(*)").await, i64::from(job));
    let settings = "SELECT DISTINCT setting FROM said";
    assert_eq!(outsider.texts(settings).await, ["on"]);
}

async fn scalar(outsider: &mut Outsider, sql: &str) -> i64 {
    outsider.numbers(&format!("SELECT {sql} FROM said")).await[0]
}

/// sqlx does not know that it began: the pool would hand the connection to the next reader within the transaction.
#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_whose_beginning_was_cancelled_is_not_continued() {
    let database = Database::postgres().await;
    psql(&database.url, "CREATE TABLE numbers (number BIGINT)");
    let limits = Limits {
        readers: 1,
        writers: 1,
        query_timeout: Duration::from_secs(60),
    };
    let opened = mesh_db::Database::connect(&NO_TABLES, &database.location(), limits).unwrap();
    // False if the server was so fast that it had begun.
    let cancel_begin = async |pool: &Pool, access| {
        let mut connection = pool.acquire().await.unwrap();
        connection.begin(access).now_or_never().is_none()
    };
    let mut cancelled = 0;
    let count = Sql::new("SELECT COUNT(*) AS numbers FROM numbers");
    for expected in 1..=20 {
        cancelled += u32::from(cancel_begin(&opened.readers, Access::Snapshot).await);
        opened.readers.rows(&count).await.unwrap();
        psql(&database.url, "INSERT INTO numbers VALUES (1)");
        let mut connection = opened.readers.acquire().await.unwrap();
        let mut snapshot = connection.begin(Access::Snapshot).await.unwrap();
        let rows = snapshot.conn().rows(&count).await.unwrap();
        snapshot.commit().await.unwrap();
        assert_eq!(rows[0].get::<i64>("numbers").unwrap(), expected);
    }
    assert!(cancelled > 0);
    while !cancel_begin(&opened.writer, Access::Write).await {}
    let insert = Sql::new("INSERT INTO numbers VALUES (1)");
    opened.writer.rows(&insert).await.unwrap();
    opened.close().await;
    let found = database
        .outsider()
        .await
        .numbers("SELECT COUNT(*) FROM numbers")
        .await;
    assert_eq!(found, [21]);
}
