//! Query parameters. Each may occur once; errors name the parameter.

use mesh_runtime::TimeBound;
use mesh_runtime::api::Problem;

use crate::domain::filter::{Filter, InvalidFilter, list, number, time_bound};
use crate::domain::query::ListRequest;
use crate::domain::record::categories;

/// Description of `category`, which is a filter of query strings only: short for types.
pub(super) const CATEGORY: &str = "Event categories, comma-separated or repeated: `job`, `node`, `user`, `cost`, `queue`, `capture`, `audit`.";
/// Description of `fields`.
pub(super) const FIELDS: &str = "Returns only these fields of each entry: comma-separated paths such as `seq,type,data.owner.user`";

/// The parameters of one request.
pub(super) struct Params {
    pairs: Vec<(String, String)>,
}

impl Params {
    /// Parses a query string. No value may be empty, and only `type` and `category` may be
    /// repeated.
    pub(super) fn of(query: Option<&str>) -> Result<Self, Problem> {
        let mut pairs: Vec<(String, String)> = Vec::new();
        for (name, value) in
            url::form_urlencoded::parse(query.unwrap_or_default().as_bytes()).into_owned()
        {
            let value = value.trim().to_owned();
            if value.is_empty() {
                return Err(Problem::bad_request(format!(
                    "{name}: empty; omit it or set a value"
                )));
            }
            if !matches!(name.as_str(), "type" | "category")
                && pairs.iter().any(|(known, _)| *known == name)
            {
                return Err(Problem::bad_request(format!(
                    "{name}: given twice; allowed: once"
                )));
            }
            pairs.push((name, value));
        }
        Ok(Self { pairs })
    }

    /// Removes and returns a parameter.
    pub(super) fn take(&mut self, name: &str) -> Option<String> {
        let place = self.pairs.iter().position(|(known, _)| known == name)?;
        Some(self.pairs.remove(place).1)
    }

    /// Removes a parameter and parses it as an integer.
    pub(super) fn number<T: std::str::FromStr>(
        &mut self,
        name: &'static str,
    ) -> Result<Option<T>, Problem> {
        self.take(name)
            .map(|value| number(name, &value))
            .transpose()
            .map_err(invalid)
    }

    /// Removes a parameter and parses it as one of several keywords.
    pub(super) fn choice<T: Copy>(
        &mut self,
        name: &str,
        choices: &[(&str, T)],
    ) -> Result<Option<T>, Problem> {
        let Some(value) = self.take(name) else {
            return Ok(None);
        };
        let found = choices.iter().find(|(choice, _)| *choice == value);
        found.map(|(_, meaning)| Some(*meaning)).ok_or_else(|| {
            let choices: Vec<&str> = choices.iter().map(|(choice, _)| *choice).collect();
            Problem::bad_request(format!(
                "{name}: unknown value {value:?}; allowed: {}",
                choices.join(", ")
            ))
        })
    }

    /// Removes a parameter and parses it as a time.
    pub(super) fn time(&mut self, name: &'static str) -> Result<Option<TimeBound>, Problem> {
        self.take(name)
            .map(|value| time_bound(name, &value))
            .transpose()
            .map_err(invalid)
    }

    /// Rejects remaining parameters. `own` lists the parameters of this request.
    pub(super) fn end(self, own: &str) -> Result<(), Problem> {
        match self.pairs.first() {
            None => Ok(()),
            Some((name, _)) => Err(Problem::bad_request(format!(
                "{name}: unknown parameter; allowed: {own}"
            ))),
        }
    }

    /// Parses the remaining parameters as filters. `own` lists the other parameters of this
    /// request.
    pub(super) fn filter(self, own: &str) -> Result<Filter, Problem> {
        let mut filter = Filter::default();
        for (name, value) in self.pairs {
            if name == "category" {
                for category in list(&value) {
                    if !categories().any(|known| known == category) {
                        return Err(Problem::bad_request(format!(
                            "category: unknown category {category:?}; allowed: {}",
                            categories().collect::<Vec<_>>().join(", ")
                        )));
                    }
                    filter.types.push(format!("{category}.*"));
                }
            } else if !filter.set(&name, &value).map_err(invalid)? {
                let (first, rest) = Filter::KEYS.split_at(1);
                let allowed = [first, &["category"], rest, &[own]].concat().join(", ");
                return Err(Problem::bad_request(format!(
                    "{name}: unknown filter; allowed: {allowed}"
                )));
            }
        }
        Ok(filter)
    }

    /// Parses the request of a listing.
    pub(super) fn list(mut self) -> Result<ListRequest, Problem> {
        Ok(ListRequest {
            cursor: self.take("cursor"),
            limit: self.number("limit")?,
            descending: self
                .choice("order", &[("asc", false), ("desc", true)])?
                .unwrap_or_default(),
            filter: self.filter("limit, cursor, order, fields")?,
        })
    }
}

fn invalid(error: InvalidFilter) -> Problem {
    Problem::bad_request(error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(query: &str) -> Result<ListRequest, Problem> {
        Params::of(Some(query))?.list()
    }

    #[test]
    fn filters_are_read() {
        let request =
            parse("cluster=c&type=job.*,cost.finalized&category=node&limit=5&order=desc&since=2h")
                .unwrap();
        assert_eq!(request.filter.types, ["job.*", "cost.finalized", "node.*"],);
        assert_eq!((request.limit, request.descending), (Some(5), true));
        assert!(parse("since=2026-11-22T10:00:00+01:00").is_ok());
        let day = parse("since=2026-11-01").unwrap().filter.since;
        assert_eq!(
            day.map(String::from).as_deref(),
            Some("2026-11-01T00:00:00Z")
        );
        let job = parse("job=123%2B1").unwrap().filter.job;
        assert_eq!(job.as_deref(), Some("123+1"));
        let filter = parse("array=7&from_seq=3&to_seq=9&name=train*&identity=a@example.org")
            .unwrap()
            .filter;
        assert_eq!(
            (filter.array, filter.from_seq, filter.to_seq),
            (Some(7), Some(3), Some(9))
        );
    }

    #[test]
    fn wrong_filters_are_named() {
        let check = |query: &str, part: &str| {
            let problem = parse(query).unwrap_err();
            assert_eq!(problem.status, 400);
            assert!(problem.detail.contains(part), "{}", problem.detail);
        };
        check("colour=red", "colour: unknown filter; allowed: cluster");
        check(
            "category=jobs",
            "category: unknown category \"jobs\"; allowed: job",
        );
        check("limit=many", "limit: \"many\"");
        check("limit=-1", "limit: \"-1\"");
        check(
            "order=up",
            "order: unknown value \"up\"; allowed: asc, desc",
        );
        check("since=tomorrow", "since: \"tomorrow\" is not a time");
        check("array=1_2", "array: \"1_2\"");
        check("job=1&job=2", "job: given twice");
        check("user=", "user: empty");
    }
}
