//! The jobs of one user with their comments.

use super::{Cli, malformed};
use crate::parse::{self, Separator};
use crate::{CommentedJob, Error};

impl Cli {
    /// The jobs of a user in the controller's memory. The controller selects them, so a long queue of others costs little.
    pub(crate) async fn jobs_of_user(&self, user: &str) -> Result<Vec<CommentedJob>, Error> {
        let separator = Separator::random();
        let format = format!("--format={}", separator.join(&parse::COMMENTED_COLUMNS));
        let user = format!("--user={user}");
        let arguments = ["-h", "-a", "-t", "all", &user, &format];
        let output = self.runner.run("squeue", &arguments).await?;
        let rows = parse::delimited(&output, &separator, parse::COMMENTED_COLUMNS.len());
        let jobs = rows.and_then(|rows| {
            rows.iter()
                .map(|row| parse::commented_job(row))
                .collect::<Option<Vec<_>>>()
        });
        // A row that cannot be read may be the job that is looked for.
        jobs.ok_or_else(|| {
            malformed(
                "squeue",
                "a row does not have the requested columns",
                &output,
            )
        })
    }
}
