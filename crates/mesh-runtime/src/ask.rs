//! Requests to a task that answers each.

use tokio::sync::{mpsc, oneshot};

/// Sends a request to a task and returns its answer; `None` if the task has ended, or ends without one.
///
/// The answer alone does not show that: a request that is sent while the task drops its receiver stays in the channel, with the sender of its
/// answer, until the last sender of requests is gone. That may be the very caller who waits.
pub async fn ask<Q, A>(
    requests: &mpsc::Sender<Q>,
    request: impl FnOnce(oneshot::Sender<A>) -> Q,
) -> Option<A> {
    let (reply, answer) = oneshot::channel();
    requests.send(request(reply)).await.ok()?;
    tokio::select! {
        biased;
        answer = answer => answer.ok(),
        () = requests.closed() => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_task_answers_until_it_ends() {
        let (requests, mut receiver) = mpsc::channel::<oneshot::Sender<u32>>(1);
        let task = tokio::spawn(async move {
            receiver.recv().await.unwrap().send(7).unwrap();
            // It ends with a request that is neither answered nor dropped.
            receiver.recv().await.unwrap()
        });
        assert_eq!(ask(&requests, |reply| reply).await, Some(7));
        assert_eq!(ask(&requests, |reply| reply).await, None);
        task.await.unwrap().send(8).unwrap_err();
        assert_eq!(ask(&requests, |reply| reply).await, None);
    }
}
