use super::*;

fn text(text: &str) -> Option<String> {
    Some(text.to_owned())
}

fn exactly(kind: &str) -> TypeSelector {
    TypeSelector::Exactly(kind.into())
}

/// Returns the paths in order, each described by the conditions of its scans.
fn paths(selection: &Selection, visibility: &Visibility) -> Vec<String> {
    let condition = |scan: &IndexScan| match &scan.condition {
        IndexCondition::Sequence => "all".to_owned(),
        IndexCondition::Equals(column, value) => {
            let name = column.index.rsplit('_').next().unwrap_or_default();
            format!("{name}={value}")
        }
        IndexCondition::NodeBlock(block) => format!("block={block}"),
        IndexCondition::NamePrefix => "names".into(),
    };
    AccessPath::candidates(selection, visibility)
        .iter()
        .map(|path| {
            path.scans
                .iter()
                .map(condition)
                .collect::<Vec<_>>()
                .join("|")
        })
        .collect()
}

#[test]
fn every_indexed_condition_gives_a_path() {
    let asked = Selection {
        account: text("physics"),
        types: vec![
            exactly("job.failed"),
            TypeSelector::Category("queue".into()),
        ],
        identity: text("a@example.org"),
        identity_users: Some(["alice".into(), "admin".into()].into()),
        cluster: text("one"),
        name: Some(NamePattern::Prefix("train".into())),
        since: Some(1),
        ..Selection::default()
    };
    assert_eq!(
        paths(&asked, &Visibility::All),
        [
            "user=admin|user=alice",
            "account=physics",
            "type=job.failed|type=queue.explained",
            "names",
        ]
    );
}

#[test]
fn events_of_jobs_are_found_with_further_filters() {
    let asked = |types, account: Option<String>| Selection {
        types,
        account,
        ..Selection::default()
    };
    let jobs = TypeSelector::Category("job".into());
    let check = |selection: Selection| paths(&selection, &Visibility::All);
    assert_eq!(check(asked(vec![jobs.clone()], None)), ["all"]);
    let with_account = asked(vec![jobs.clone()], text("physics"));
    assert_eq!(check(with_account), ["account=physics"]);
    let with_another = asked(vec![exactly("node.down"), jobs], None);
    assert_eq!(check(with_another), ["all"]);
}

#[test]
fn visibility_gives_a_path_even_if_empty() {
    let visibility = Visibility::Restricted {
        users: ["alice".to_owned()].into(),
        accounts: [(text("one"), ["art".to_owned()].into())].into(),
    };
    assert_eq!(
        paths(&Selection::default(), &visibility),
        ["user=alice|account=art"]
    );
    assert_eq!(paths(&Selection::default(), &Visibility::All), ["all"]);
    let no_access = Visibility::Restricted {
        users: BTreeSet::new(),
        accounts: AccountsByCluster::new(),
    };
    assert_eq!(paths(&Selection::default(), &no_access), ["all"]);
}

/// Clusters and times are located by block ranges (`block_ranges`).
#[test]
fn cluster_and_time_have_no_path() {
    let asked = Selection {
        cluster: text("one"),
        until: Some(9),
        ..Selection::default()
    };
    assert_eq!(paths(&asked, &Visibility::All), ["all"]);
}

#[test]
fn audit_entries_are_found_by_their_category() {
    let asked = Selection {
        types: vec![TypeSelector::Category("audit".into())],
        ..Selection::default()
    };
    assert_eq!(paths(&asked, &Visibility::All), ["category=audit"]);
}

#[test]
fn selective_filters_are_planned_by_the_database() {
    let asked = Selection {
        run: text("job/7/7"),
        user: text("alice"),
        since: Some(1),
        ..Selection::default()
    };
    assert_eq!(paths(&asked, &Visibility::All), ["all"]);
}

#[test]
fn too_many_alternatives_give_no_path() {
    let asked = Selection {
        types: vec![exactly("job.failed"); MAX_SCANS + 1],
        partition: text("gpu"),
        ..Selection::default()
    };
    assert_eq!(paths(&asked, &Visibility::All), ["partition=gpu"]);
}

#[test]
fn counting_continues_until_a_path_has_ended() {
    assert_eq!(
        count_limits(20_000).collect::<Vec<_>>(),
        [500, 2_000, 8_000, 20_000]
    );
    assert_eq!(count_limits(40).collect::<Vec<_>>(), [40]);
    for (counts, expected) in [
        (&[500, 500][..], None),
        (&[500, 499][..], Some(1)),
        (&[10, 0, 500][..], Some(1)),
        (&[][..], None),
    ] {
        assert_eq!(least_index(counts, 500), expected, "{counts:?}");
    }
}
