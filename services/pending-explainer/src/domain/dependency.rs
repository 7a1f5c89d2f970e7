//! Parses dependency expressions: `afterok:123(unfulfilled),afterany:5_*(unfulfilled)`.
//!
//! Grammar and meaning: `sbatch --dependency` (Slurm 22.05 to 26.05). `,` requires all terms, `?` any term. Slurm removes fulfilled
//! terms and appends the state in parentheses.

/// One term of a dependency.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DependencyTerm {
    /// The awaited event as text: `job 123 to end successfully`.
    pub wait: String,
    /// The awaited job in Slurm's form. Empty for `singleton`.
    pub job: String,
    /// True if it can no longer be fulfilled.
    pub failed: bool,
}

/// The unfulfilled terms. Terms that cannot be parsed are left out, because the explanation also quotes the expression.
pub fn unfulfilled(expression: &str) -> Vec<DependencyTerm> {
    expression
        .split([',', '?'])
        .filter_map(term)
        .flatten()
        .collect()
}

/// True if one fulfilled term is enough.
pub fn any_suffices(expression: &str) -> bool {
    expression.contains('?')
}

fn term(text: &str) -> Option<Vec<DependencyTerm>> {
    let text = text.trim();
    let (text, state) = text.split_once('(').map_or((text, ""), |(text, state)| {
        (text, state.trim_end_matches(')'))
    });
    if state == "fulfilled" || text.is_empty() {
        return None;
    }
    let failed = state == "failed";
    if text == "singleton" {
        let wait = "your other jobs of the same name to end".to_owned();
        return Some(vec![DependencyTerm {
            wait,
            job: String::new(),
            failed,
        }]);
    }
    let (kind, jobs) = text.split_once(':')?;
    let what = match kind {
        "after" => "to start",
        "afterany" => "to end",
        "afterok" => "to end successfully",
        "afternotok" => "to fail",
        "aftercorr" => "to finish its task of the same number",
        "afterburstbuffer" => "to finish its burst buffer work",
        "expand" => "to hand over its resources",
        _ => return None,
    };
    // `after:123+10`: ten minutes after its start.
    let terms = jobs
        .split(':')
        .filter(|job| job.starts_with(|c: char| c.is_ascii_digit()))
        .map(|job| {
            let (job, delay) = match job.split_once('+') {
                Some((job, minutes)) if kind == "after" => (job, format!(", then {minutes} min")),
                _ => (job, String::new()),
            };
            let job = job.trim_end_matches("_*");
            DependencyTerm {
                wait: format!("job {job} {what}{delay}"),
                job: job.to_owned(),
                failed,
            }
        });
    Some(terms.collect())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn every_kind_has_a_message() {
        let cases = [
            ("afterok:17(unfulfilled)", "job 17 to end successfully"),
            ("afterany:5_*(unfulfilled)", "job 5 to end"),
            ("after:8+10(unfulfilled)", "job 8 to start, then 10 min"),
            ("afternotok:9_3", "job 9_3 to fail"),
            (
                "singleton(unfulfilled)",
                "your other jobs of the same name to end",
            ),
        ];
        for (text, wait) in cases {
            assert_eq!(
                unfulfilled(text)
                    .into_iter()
                    .map(|term| term.wait)
                    .collect::<Vec<_>>(),
                [wait],
                "{text}"
            );
        }
    }

    #[test]
    fn several_jobs_and_fulfilled_parts() {
        let terms = unfulfilled("afterok:3(failed),afterok:4(fulfilled),afterany:5:6(unfulfilled)");
        assert_eq!(
            terms
                .iter()
                .map(|term| (term.job.as_str(), term.failed))
                .collect::<Vec<_>>(),
            [("3", true), ("5", false), ("6", false)]
        );
    }

    proptest! {
        #[test]
        fn any_text_is_survived(text in "\\PC{0,60}") {
            unfulfilled(&text);
        }
    }
}
