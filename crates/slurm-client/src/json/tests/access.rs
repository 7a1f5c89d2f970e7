//! The same associations and users as sacctmgr prints them and as slurmrestd returns them, of three releases.

use std::{collections::BTreeMap, fs};

use super::{VERSIONS, folder, items};
use crate::{
    json::{association, user},
    parse,
    record::AssociationRecord,
};

#[test]
fn access_is_the_same_as_text_and_as_json() {
    for version in VERSIONS {
        let folder = folder(version, "access");
        let read = |file: &str| fs::read_to_string(folder.join(file)).unwrap();
        let (mut text, unread) = parse::associations(&read("sacctmgr-assoc.txt"), false);
        assert_eq!(unread.count, 0);
        let json = items(
            read("associations.json").as_bytes(),
            "associations",
            association,
        );
        let mut json: Vec<_> = json.into_iter().map(Option::unwrap).collect();
        let key = |record: &AssociationRecord| {
            let [account, user, partition] = [&record.account, &record.user, &record.partition];
            (account.clone(), user.clone(), partition.clone())
        };
        text.sort_by_key(key);
        json.sort_by_key(|one| key(&one.record));
        assert_eq!(text.len(), json.len(), "{version}");
        let mut defaults = BTreeMap::new();
        for (mut text, mut json) in text.into_iter().zip(json) {
            (text.id, json.record.id, json.record.comment) = (0, 0, None);
            assert_eq!(text, json.record, "{version}");
            assert_eq!(json.cluster, "mesh");
            if json.is_default && !text.user.is_empty() {
                defaults.insert(text.user, text.account);
            }
        }
        let (text, unread) = parse::users(&read("sacctmgr-user.txt"));
        assert_eq!(unread.count, 0);
        let json = items(read("users.json").as_bytes(), "users", user);
        let mut json: Vec<_> = json.into_iter().map(Option::unwrap).collect();
        for user in &mut json {
            user.default_account = defaults.remove(&user.user).unwrap_or_default();
        }
        assert_eq!(text, json, "{version}");
    }
}
