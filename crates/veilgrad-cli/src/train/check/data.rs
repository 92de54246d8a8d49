//! Checks of `[data]`: files and roles of columns.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use veilgrad_data::table::{is_parquet, is_table, is_text};

use crate::problem::Problems;
use crate::train::config::{Config, Data, Files, Record, User};

impl Config {
    /// A column has one role (label, user or feature), and no public file is a private one.
    pub(super) fn check_roles(&self, problems: &mut Problems) {
        let data = &self.data;
        let feature = |name: &str| data.columns.iter().any(|column| column.name == name);
        if let Some(label) = data.label.as_deref().filter(|label| feature(label)) {
            let text = format!("column {label:?} is the label: it cannot be a feature as well");
            problems.add("data.label", text);
        }
        let user = match &data.record {
            Record::User(User { user, .. }) => Some(user),
            _ => None,
        };
        if let Some(user) = user {
            let key = "data.record.user";
            if feature(user) {
                let text = format!("column {user:?} names users: it cannot be a feature as well");
                problems.add(key, text);
            }
            if data.label.as_ref() == Some(user) {
                problems.add(key, format!("column {user:?} cannot be both the label and the user"));
            }
        }
        if let Some(header) = &data.header {
            let names = data.label.iter().chain(user);
            for name in names.filter(|name| !header.contains(name)) {
                let count = header.len();
                let text = format!("[data] header, of {count} names, has no column {name:?}");
                problems.relying_on(&["data.label", "data.record"], |problems| {
                    problems.add("data.header", text);
                });
            }
        }
        data.check_apart(|public, private| public == private, problems);
    }

    /// The keys that each kind of file needs.
    pub(super) fn check_files(&self, problems: &mut Problems) {
        let data = &self.data;
        let mut files = data
            .test
            .iter()
            .chain(&data.calibration)
            .map(PathBuf::as_path)
            .chain(data.train.iter());
        let parquet = cfg!(not(feature = "parquet")) && files.any(is_parquet);
        problems.refuse(
            parquet,
            "data.train",
            "[data] Parquet needs a build with the feature `parquet`",
        );
        for (key, given) in
            [("delimiter", data.delimiter.is_some()), ("header", data.header.is_some())]
        {
            problems.relying_on(&["data.train"], |problems| {
                problems.refuse(
                    given && !data.train.iter().all(is_text),
                    &format!("data.{key}"),
                    "[data] delimiter and header are for .csv and .tsv files",
                );
            });
        }
        problems.refuse(
            data.calibration.is_some() && data.label_bounds.is_some(),
            "data.calibration",
            "[data] calibration is for classes: a label that is a number has no probability",
        );
        problems.relying_on(&["data.calibration"], |problems| {
            problems.refuse(
                data.calibration.is_none() && data.calibration_labels.is_some(),
                "data.calibration_labels",
                "[data] calibration_labels are those of [data] calibration, which is missing",
            );
        });
        problems.relying_on(&["data.test"], |problems| {
            problems.refuse(
                data.test.is_none() && data.test_labels.is_some(),
                "data.test_labels",
                "[data] test_labels are those of [data] test, which is missing",
            );
        });
        problems.refuse(
            !data.train.iter().all(|file| is_table(file) == is_table(data.train.first())),
            "data.train",
            "[data] train has tables and arrays; files whose rows follow each other are all tables, or all arrays",
        );
        let files = data.train.count();
        if let Some(labels) = data.labels.as_ref().map(Files::count).filter(|count| *count != files)
        {
            let text = format!(
                "[data] labels has {labels} files and train has {files}: each file of examples has its own labels"
            );
            problems.relying_on(&["data.train"], |problems| problems.add("data.labels", text));
        }
        // The name of the training file says which keys are needed.
        problems.relying_on(&["data.train"], |problems| match is_table(data.train.first()) {
            true => self.check_table(problems),
            false => self.check_arrays(problems),
        });
    }

    fn check_table(&self, problems: &mut Problems) {
        let data = &self.data;
        problems.relying_on(&["data.label"], |problems| {
            let text = "[data] label is missing: which column is the label?";
            problems.refuse(data.label.is_none(), "data", text);
        });
        problems.refuse(
            matches!(data.record, Record::UserIds(_)),
            "data.record",
            "[data] record: user_ids is for arrays; name the column of a table with user = \"column\"",
        );
        problems.relying_on(&["data.columns"], |problems| {
            problems.refuse(
                data.columns.is_empty(),
                "data",
                "[[data.columns]] are missing: name the columns to use, with bounds or categories",
            );
        });
    }

    fn check_arrays(&self, problems: &mut Problems) {
        let data = &self.data;
        let has_labels = |separately: bool| separately || data.arrays.is_some();
        for (key, given) in [("label", data.label.is_some()), ("columns", !data.columns.is_empty())]
        {
            problems.refuse(
                given,
                &format!("data.{key}"),
                "[data] label and columns are for tables (.csv, .tsv, .jsonl, .parquet)",
            );
        }
        problems.refuse(
            matches!(data.record, Record::User(_)),
            "data.record",
            "[data] record: users are named by a column of a table; for arrays, give user_ids = \"file\"",
        );
        problems.relying_on(&["data.arrays"], |problems| {
            problems.refuse(
                self.ids_in_archive()
                    && data.arrays.as_ref().is_none_or(|arrays| arrays.users.is_none()),
                "data.record",
                "[data] record: user_ids is an .npz file: name the array of ids with arrays = { users = \"name\", ... }",
            );
        });
        problems.relying_on(&["data.shape"], |problems| {
            problems.refuse(
                data.shape.is_none(),
                "data",
                "[data] shape is missing: the shape of an example is declared, not read from private data",
            );
        });
        problems.relying_on(&["data.bounds"], |problems| {
            problems.refuse(
                data.bounds.is_none(),
                "data",
                "[data] bounds is missing: the range of numbers is declared, not read from private data",
            );
        });
        problems.relying_on(&["data.labels", "data.arrays"], |problems| {
            let text = "[data] labels is missing: where are the labels?";
            problems.refuse(!has_labels(data.labels.is_some()), "data", text);
        });
        for (key, file, labels) in [
            ("test", &data.test, &data.test_labels),
            ("calibration", &data.calibration, &data.calibration_labels),
        ] {
            let (place, wrong) =
                (format!("data.{key}"), file.is_some() && !has_labels(labels.is_some()));
            let text = format!("[data] {key}_labels is missing: where are the labels?");
            let keys = [format!("{place}_labels"), "data.arrays".to_owned()];
            problems.relying_on(&keys, |problems| problems.refuse(wrong, &place, text));
        }
    }

    /// Whether the ids of users are an array among others.
    fn ids_in_archive(&self) -> bool {
        let Record::UserIds(ids) = &self.data.record else { return false };
        ids.user_ids.extension().is_some_and(|end| end.eq_ignore_ascii_case("npz"))
    }
}

impl Data {
    /// The public files, which are evaluated without charge, each with its key.
    fn public_files(&self) -> impl Iterator<Item = (&'static str, &Path)> {
        let files = [
            ("test", &self.test),
            ("test_labels", &self.test_labels),
            ("calibration", &self.calibration),
            ("calibration_labels", &self.calibration_labels),
        ];
        files.into_iter().filter_map(|(key, file)| Some((key, file.as_deref()?)))
    }

    fn private_files(&self) -> impl Iterator<Item = (&'static str, &Path)> {
        let labels = self.labels.iter().flat_map(Files::iter).map(|labels| ("labels", labels));
        let ids = match &self.record {
            Record::UserIds(ids) => Some(("record: user_ids", ids.user_ids.as_path())),
            _ => None,
        };
        self.train.iter().map(|train| ("train", train)).chain(labels).chain(ids)
    }

    /// All files, each with the place of its key.
    pub(crate) fn files(&self) -> impl Iterator<Item = (String, &Path)> {
        let files = self.private_files().chain(self.public_files());
        files.map(|(key, file)| (format!("data.{}", key.replace(": ", ".")), file))
    }

    /// Refuses a public file that is a private one under another name, through a link or another spelling of its path. Reads
    /// file metadata only.
    pub(super) fn check_public_files(&self, problems: &mut Problems) {
        let identity = |path: &Path| {
            let found = std::fs::metadata(path).ok()?;
            Some((found.dev(), found.ino()))
        };
        // A missing file is reported when it is opened.
        let same = |one: &Path, other: &Path| {
            identity(one).is_some_and(|found| identity(other) == Some(found))
        };
        self.check_apart(same, problems);
    }

    fn check_apart(&self, same: impl Fn(&Path, &Path) -> bool, problems: &mut Problems) {
        for (public_key, public) in self.public_files() {
            if let Some((private_key, _)) =
                self.private_files().find(|(_, file)| same(public, file))
            {
                let text = format!(
                    "[data] {public_key} is the private file of [data] {private_key}: what is printed about a \
                     public test set would be about private records; name another file, or none"
                );
                let private = format!("data.{}", private_key.replace(": ", "."));
                problems.relying_on(&[private], |problems| {
                    problems.add(format!("data.{public_key}"), text);
                });
            }
        }
        if let (Some(calibration), Some(test)) = (&self.calibration, &self.test)
            && same(calibration, test)
        {
            problems.add(
                "data.calibration",
                "[data] calibration is the file of [data] test: probabilities would be judged by the examples that they \
                 were fitted to; name another file",
            );
        }
    }
}
