//! Which keys of `[data] record` go together.

use crate::train::reference::{Value, table};

/// The path of the table.
pub(super) const PATH: &str = "data.record";

/// One way to say what a record is.
struct Form {
    /// The key that no other form has.
    key: &'static str,
    /// The keys that it needs.
    needs: &'static [&'static str],
    /// The keys that it may have.
    takes: &'static [&'static str],
    /// A record of this form, as it is written in a configuration.
    example: &'static str,
}

const FORMS: [Form; 4] = [
    Form {
        key: "user",
        needs: &["max_examples"],
        takes: &[],
        example: "{ user = \"person\", max_examples = 8 }",
    },
    Form {
        key: "user_ids",
        needs: &["max_examples"],
        takes: &[],
        example: "{ user_ids = \"ids.npy\", max_examples = 8 }",
    },
    Form {
        key: "partition",
        needs: &["users", "max_examples"],
        takes: &["concentration", "classes_per_user", "seed"],
        example: "{ partition = \"uniform\", users = 60000, max_examples = 8 }",
    },
    Form { key: "microbatch", needs: &[], takes: &[], example: "{ microbatch = 4 }" },
];

/// What is wrong with the keys of a record, and a record that the rest of the configuration can be checked with. Each problem has
/// its key; it is empty if it is about the record as a whole.
pub(super) fn combination<'n>(names: &[&'n str]) -> (Vec<(&'n str, String)>, &'static str) {
    let given: Vec<&Form> = FORMS.iter().filter(|form| names.contains(&form.key)).collect();
    let label = "[data] record:";
    let form = match given.as_slice() {
        [] => {
            let text = format!("{label} expected {}", Value::Table(PATH).describe());
            return (vec![("", text)], "\"example\"");
        }
        [form] => form,
        [form, ..] => {
            let keys: Vec<String> = given.iter().map(|form| format!("`{}`", form.key)).collect();
            let text = format!("{label} {} do not go together; give one", keys.join(" and "));
            return (vec![("", text)], form.example);
        }
    };
    let mut problems = Vec::new();
    for name in form.needs.iter().filter(|name| !names.contains(name)) {
        let wanted = table(PATH).and_then(|table| table.keys.iter().find(|key| key.name == *name));
        let wanted = wanted.map_or(String::new(), |key| format!(": {}", key.value.describe()));
        problems.push((*name, format!("{label} {name} is missing{wanted}")));
    }
    for name in names {
        let is_known =
            FORMS.iter().any(|form| form.needs.contains(name) || form.takes.contains(name));
        if is_known && !form.needs.contains(name) && !form.takes.contains(name) {
            problems.push((*name, format!("{label} {name} is not for `{}`", form.key)));
        }
    }
    (problems, form.example)
}
