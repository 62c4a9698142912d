//! What the host should hear about a config that is used all the same.

use super::keys::{NAMES, shorten};

/// Warnings, at most [`Warnings::MOST`] of them; further ones are only counted.
#[derive(Default)]
pub(super) struct Warnings {
    texts: Vec<String>,
    more: usize,
}

impl Warnings {
    pub const MOST: usize = 32;

    /// Adds a warning. The text is only made when there is room: a config may be wrong in very many ways.
    pub fn push(&mut self, text: impl FnOnce() -> String) {
        if self.texts.len() < Self::MOST {
            self.texts.push(text());
        } else {
            self.more += 1;
        }
    }

    /// One warning for each key of ours that this version does not know.
    pub fn unknown_keys(&mut self, given: &[&str]) {
        let ours = |key: &&&str| key.starts_with("kv_h2o_") || key.starts_with("kv_lossless_");
        for key in given.iter().filter(ours).filter(|key| !NAMES.contains(key)) {
            self.push(|| {
                let hint = similar(key).map_or(String::new(), |name| format!("; did you mean {name}?"));
                format!("{} is not a key of this version{hint}", shorten(key))
            });
        }
    }

    /// The texts, the last one saying how many were left out.
    pub fn into_texts(mut self) -> Vec<String> {
        if self.more > 0 {
            self.texts.push(format!("and {} more", self.more));
        }
        self.texts
    }
}

/// The known key that is fewest edits away from `key`, when that is near enough to be meant.
fn similar(key: &str) -> Option<&'static str> {
    const NEAR: usize = 3;
    // The difference in length is the least distance; it also keeps a very long key from costing anything.
    let near = NAMES.iter().filter(|name| name.len().abs_diff(key.len()) <= NEAR);
    near.map(|name| (distance(key.as_bytes(), name.as_bytes()), *name))
        .filter(|(distance, _)| *distance <= NEAR)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, name)| name)
}

/// Levenshtein's distance: bytes to insert, delete or replace.
fn distance(a: &[u8], b: &[u8]) -> usize {
    // row[j] is the distance of what was read of `a` to the first j bytes of `b`.
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, from) in a.iter().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, to) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(from != to);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_of_known_pairs() {
        for (a, b, edits) in [("", "", 0), ("", "abc", 3), ("kitten", "sitting", 3), ("flaw", "lawn", 2), ("a", "a", 0)]
        {
            assert_eq!(distance(a.as_bytes(), b.as_bytes()), edits, "{a} {b}");
            assert_eq!(distance(b.as_bytes(), a.as_bytes()), edits, "{b} {a}");
        }
    }

    #[test]
    fn a_key_far_from_all_others_gets_no_hint() {
        assert_eq!(similar("kv_h2o_recnt_tokens"), Some("kv_h2o_recent_tokens"));
        assert_eq!(similar("kv_lossless_predictors_q"), Some("kv_lossless_predictors_k"));
        assert_eq!(similar("kv_h2o_"), None);
        assert_eq!(similar(&"kv_h2o_enable".repeat(100_000)), None);
    }
}
