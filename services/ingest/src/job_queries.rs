//! The queries about jobs that ingest sends to Slurm.

use std::future::Future;
use std::time::Duration;

use slurm_client::{
    AccountingQuery, AccountingRecord, ArraySubmission, JobLookup, JobPages, Ping, QueueListing,
    Slurm, UsageRecord,
};
use slurm_types::{JobId, JobRef};

/// Queries about jobs. The client answers them from Slurm; the collector's test in virtual time answers them from a model.
pub trait JobQueries: Clone + Send + Sync + 'static {
    /// As [`Slurm::list_queue`].
    fn list_queue(&self) -> impl Future<Output = Answer<QueueListing>> + Send;
    /// As [`Slurm::ping`].
    fn ping(&self) -> impl Future<Output = Answer<Ping>> + Send;
    /// As [`Slurm::jobs`].
    fn jobs(&self, ids: &[JobId]) -> impl Future<Output = Answer<JobLookup>> + Send;
    /// As [`Slurm::jobs_from_list`].
    fn jobs_from_list(&self, ids: &[JobId]) -> impl Future<Output = Answer<JobLookup>> + Send;
    /// As [`Slurm::job_pages`].
    fn job_pages(&self, ids: Vec<JobId>) -> impl Future<Output = Answer<JobPages>> + Send;
    /// As [`Slurm::accounting`].
    fn accounting(
        &self,
        query: &AccountingQuery,
    ) -> impl Future<Output = Answer<Vec<AccountingRecord>>> + Send;
    /// As [`Slurm::usage`].
    fn usage(&self, jobs: &[JobRef]) -> impl Future<Output = Answer<Vec<UsageRecord>>> + Send;
    /// As [`Slurm::submitted`].
    fn submitted(
        &self,
        arrays: &[JobId],
    ) -> impl Future<Output = Answer<Vec<ArraySubmission>>> + Send;
    /// As [`Slurm::min_poll_interval`].
    fn min_poll_interval(&self, last_answer: Duration) -> Duration;
}

type Answer<T> = Result<T, slurm_client::Error>;

impl JobQueries for Slurm {
    async fn list_queue(&self) -> Answer<QueueListing> {
        Self::list_queue(self).await
    }

    async fn ping(&self) -> Answer<Ping> {
        Self::ping(self).await
    }

    async fn jobs(&self, ids: &[JobId]) -> Answer<JobLookup> {
        Self::jobs(self, ids).await
    }

    async fn jobs_from_list(&self, ids: &[JobId]) -> Answer<JobLookup> {
        Self::jobs_from_list(self, ids).await
    }

    async fn job_pages(&self, ids: Vec<JobId>) -> Answer<JobPages> {
        Self::job_pages(self, ids).await
    }

    async fn accounting(&self, query: &AccountingQuery) -> Answer<Vec<AccountingRecord>> {
        Self::accounting(self, query).await
    }

    async fn usage(&self, jobs: &[JobRef]) -> Answer<Vec<UsageRecord>> {
        Self::usage(self, jobs).await
    }

    async fn submitted(&self, arrays: &[JobId]) -> Answer<Vec<ArraySubmission>> {
        Self::submitted(self, arrays).await
    }

    fn min_poll_interval(&self, last_answer: Duration) -> Duration {
        Self::min_poll_interval(self, last_answer)
    }
}
