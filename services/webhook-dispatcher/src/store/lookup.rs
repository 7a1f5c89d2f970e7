//! Looks up known events in batches: one query at a time, for all events that were requested during the previous one.

use mesh_db::pool::Pool;
use mesh_db::{Bulk, sql};
use tokio::sync::{mpsc, oneshot};

/// Maximum events per query.
const BATCH_SIZE: usize = 256;

const KNOWN: &str = "SELECT n FROM bulk WHERE EXISTS (SELECT 1 FROM deliveries
     WHERE deliveries.endpoint = bulk.endpoint AND deliveries.event_id = bulk.event_id)";

/// An event of an endpoint, and the channel for the answer.
struct LookupRequest {
    endpoint: String,
    event_id: String,
    answer: oneshot::Sender<bool>,
}

/// Sends requests to the task, which ends with the last clone. Cheap to clone.
#[derive(Clone)]
pub(super) struct Lookup {
    questions: mpsc::Sender<LookupRequest>,
    pool: Pool,
}

impl Lookup {
    /// Starts the task, which uses one connection of this pool at a time.
    pub(super) fn start(pool: Pool) -> Self {
        let (questions, asked) = mpsc::channel(2 * BATCH_SIZE);
        tokio::spawn(run(pool.clone(), asked));
        Self { questions, pool }
    }

    /// True if the endpoint has a delivery of this event, in any state.
    pub(super) async fn knows(&self, endpoint: &str, event_id: &str) -> Result<bool, sqlx::Error> {
        let question = |answer| LookupRequest {
            endpoint: endpoint.to_owned(),
            event_id: event_id.to_owned(),
            answer,
        };
        if let Some(known) = mesh_runtime::ask(&self.questions, question).await {
            return Ok(known);
        }
        // The batched query failed: query each event, so that each caller gets its own error.
        let sql = sql!(
            "SELECT event_id FROM deliveries WHERE endpoint = ? AND event_id = ?",
            endpoint,
            event_id,
        );
        Ok(self.pool.first(&sql).await?.is_some())
    }
}

async fn run(pool: Pool, mut asked: mpsc::Receiver<LookupRequest>) {
    let mut questions = Vec::with_capacity(BATCH_SIZE);
    while asked.recv_many(&mut questions, BATCH_SIZE).await > 0 {
        match known(&pool, &questions).await {
            Ok(known) => questions
                .drain(..)
                .zip(known)
                .for_each(|(question, known)| {
                    // The caller may be gone.
                    question.answer.send(known).ok();
                }),
            Err(error) => {
                tracing::debug!(
                    error = &error as &dyn std::error::Error,
                    "look up deliveries"
                );
                questions.clear();
            }
        }
    }
}

async fn known(pool: &Pool, questions: &[LookupRequest]) -> Result<Vec<bool>, sqlx::Error> {
    let numbered: Vec<_> = (0_i64..).zip(questions).collect();
    let bulk = Bulk::of(&numbered)
        .ints("n", |(n, _)| *n)
        .texts("endpoint", |(_, question)| question.endpoint.as_str())
        .texts("event_id", |(_, question)| question.event_id.as_str());
    let mut connection = pool.acquire().await?;
    let rows = connection.conn().fetch_bulk(&bulk, KNOWN).await?;
    let mut known = vec![false; questions.len()];
    for row in rows {
        let n = usize::try_from(row.get::<i64>("n")?).unwrap_or(usize::MAX);
        if let Some(known) = known.get_mut(n) {
            *known = true;
        }
    }
    Ok(known)
}
