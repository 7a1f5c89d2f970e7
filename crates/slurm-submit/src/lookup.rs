//! Looks a job up by its id: in the controller, then in accounting.

use slurm_client::{
    AccountingQuery, AccountingRecord, ArrayTasks, CommentedJob, Error, JobRecord, Slurm,
};
use slurm_types::{JobBaseState, JobId};

use crate::status::{ArrayRecord, JobStatus};
use crate::{Confirmation, SubmitError, SubmitKey, classify};

/// What controller and accounting say of a job of this user. Without a key any job of the user counts.
pub(crate) async fn status(
    slurm: &Slurm,
    uid: u32,
    job: JobId,
    key: Option<&SubmitKey>,
) -> Result<Confirmation, SubmitError> {
    let lookup = match slurm.jobs(&[job]).await {
        Ok(lookup) => lookup,
        Err(error) => return Ok(Confirmation::Unknown(error.to_string())),
    };
    if let Some((_, problem)) = lookup.unclear.first() {
        return Ok(Confirmation::Unknown(problem.clone()));
    }
    // An array's own record, else one of its tasks.
    let own = lookup
        .found
        .iter()
        .find(|record| record.job_id == Some(job));
    if let Some(record) = own.or(lookup.found.first()) {
        let is_it = record.uid == Some(uid) && has_key(&record.comment, key);
        return Ok(match is_it {
            true => Confirmation::Present(of_record(record)),
            false => Confirmation::OtherKey,
        });
    }
    match slurm.accounting(&AccountingQuery::Jobs(vec![job])).await {
        Ok(rows) => Ok(in_accounting(rows, uid, job, key)),
        Err(error) if is_without_accounting(&error) => Ok(Confirmation::Absent),
        Err(error) => Ok(Confirmation::Unknown(error.to_string())),
    }
}

/// What the controller has of an array of this user. Of another user's array it is nothing: ids come back.
pub(crate) async fn tasks(
    slurm: &Slurm,
    uid: u32,
    array: JobId,
) -> Result<Vec<ArrayRecord>, SubmitError> {
    let lookup = slurm.jobs(&[array]).await;
    let lookup = lookup.map_err(|error| classify::unanswered(&error))?;
    if let Some((_, problem)) = lookup.unclear.first() {
        return Err(SubmitError::unknown(problem.as_str()));
    }
    let of_owner = lookup
        .found
        .iter()
        .filter(|record| record.uid == Some(uid) && record.array_job_id == Some(array));
    let read = of_owner.map(|record| ArrayRecord {
        task: record.array_tasks.as_ref().and_then(ArrayTasks::task),
        state: record.state.clone(),
        held: JobStatus::is_held(&record.state, &record.reason, record.priority),
        restarts: record.restarts,
        end: record.end,
    });
    Ok(read.collect())
}

fn in_accounting(
    rows: Vec<AccountingRecord>,
    uid: u32,
    job: JobId,
    key: Option<&SubmitKey>,
) -> Confirmation {
    let is_job = |row: &AccountingRecord| {
        let array = row.array.as_ref().map(|array| array.array_job_id);
        row.job_id == Some(job) || array == Some(job)
    };
    // A pending job never leaves the controller: one that accounting has as pending was lost in a crash, before it started. 26.05 has a row
    // of it, 22.05 has none.
    let is_lost = |row: &AccountingRecord| {
        row.state.is(JobBaseState::Pending) && row.end.is_none() && !row.was_allocated()
    };
    let mut rows: Vec<_> = rows.into_iter().filter(is_job).collect();
    rows.retain(|row| !is_lost(row));
    if rows.iter().any(|row| row.provisional) {
        return Confirmation::Unknown("accounting has only a part of the job yet".to_owned());
    }
    // An id may have belonged to several jobs: the newest first.
    rows.sort_by_key(|row| std::cmp::Reverse(row.submit));
    let of_owner = |row: &&AccountingRecord| row.uid == Some(uid);
    let has_it = rows
        .iter()
        .filter(of_owner)
        .find(|row| has_key(&row.comment, key));
    if let Some(row) = has_it {
        return Confirmation::Present(of_row(row));
    }
    // Comments are stored only with AccountingStoreFlags=job_comment.
    match rows.first() {
        None => Confirmation::Absent,
        Some(row) if of_owner(&row) && row.comment.is_empty() => Confirmation::Unknown(
            "the job left the controller, and accounting stores no comments (AccountingStoreFlags=job_comment)".to_owned(),
        ),
        Some(_) => Confirmation::OtherKey,
    }
}

fn has_key(comment: &str, key: Option<&SubmitKey>) -> bool {
    key.is_none_or(|key| SubmitKey::in_comment(comment).as_ref() == Some(key))
}

/// True if the cluster has no accounting at all.
fn is_without_accounting(error: &Error) -> bool {
    matches!(error, Error::AccountingDown { message, .. } if message.to_ascii_lowercase().contains("accounting storage is disabled"))
}

pub(crate) fn of_commented(job: &CommentedJob) -> JobStatus {
    JobStatus {
        held: JobStatus::is_held(&job.state, &job.reason, job.priority),
        state: job.state.clone(),
        name: job.name.clone(),
        comment: job.comment.clone(),
        restarts: None,
        submit_time: job.submit,
        memory_mib: None,
        time_minutes: None,
        from_accounting: false,
    }
}

fn of_record(record: &JobRecord) -> JobStatus {
    JobStatus {
        held: JobStatus::is_held(&record.state, &record.reason, record.priority),
        state: record.state.clone(),
        name: record.name.clone(),
        comment: record.comment.clone(),
        restarts: Some(record.restarts),
        submit_time: record.submit,
        memory_mib: record.min_mem_node_mib,
        time_minutes: record.time_limit.and_then(|limit| limit.minutes()),
        from_accounting: false,
    }
}

fn of_row(row: &AccountingRecord) -> JobStatus {
    JobStatus {
        held: false,
        state: row.state.clone(),
        name: row.name.clone(),
        comment: row.comment.clone(),
        restarts: None,
        submit_time: row.submit,
        memory_mib: None,
        time_minutes: row.time_limit.and_then(|limit| limit.minutes()),
        from_accounting: true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_key_in_accounting_confirms_a_job() {
        let (job, key) = (
            JobId::new(7).unwrap(),
            SubmitKey::new("rule", 1, "event", 0),
        );
        let row = |uid: u32, comment: &str| AccountingRecord {
            job_id: Some(job),
            uid: Some(uid),
            comment: comment.to_owned(),
            ..AccountingRecord::default()
        };
        let ours = row(1001, key.as_str());
        let answer = |rows: &[&AccountingRecord]| {
            in_accounting(
                rows.iter().copied().cloned().collect(),
                1001,
                job,
                Some(&key),
            )
        };
        let is_present =
            |answer| matches!(answer, Confirmation::Present(status) if status.from_accounting);
        assert!(is_present(answer(&[&ours])));
        assert!(is_present(answer(&[&row(1001, ""), &ours])));
        let pending = AccountingRecord {
            state: slurm_types::JobState::of(JobBaseState::Pending),
            ..ours.clone()
        };
        assert_eq!(answer(&[&pending]), Confirmation::Absent);
        assert_eq!(answer(&[]), Confirmation::Absent);
        let of_another = row(1002, key.as_str());
        assert_eq!(answer(&[&of_another]), Confirmation::OtherKey);
        assert_eq!(answer(&[&row(1001, "mine")]), Confirmation::OtherKey);
        assert!(matches!(
            answer(&[&row(1001, "")]),
            Confirmation::Unknown(_)
        ));
        let provisional = AccountingRecord {
            provisional: true,
            ..row(0, "")
        };
        assert!(matches!(answer(&[&provisional]), Confirmation::Unknown(_)));
    }
}
