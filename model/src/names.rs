//! Names of tensors: composed and looked up without allocation.

use mnnkv::status::Result;
use mnnkv::sys::memory;
use std::cmp::Ordering;
use std::fmt;

/// The name of a tensor, `<layer>.<part>`, or `<layer>` without a part.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Name<'a> {
    layer: &'a str,
    part: &'a str,
}

impl<'a> Name<'a> {
    pub(crate) fn of(layer: &'a str, part: &'a str) -> Self {
        Name { layer, part }
    }

    fn order(self, other: &str) -> Ordering {
        let other = other.as_bytes();
        let (front, rest) = other.split_at(self.layer.len().min(other.len()));
        let by_part = || match rest.split_first() {
            _ if self.part.is_empty() => [].as_slice().cmp(rest),
            None => Ordering::Greater,
            Some((dot, rest)) => b'.'.cmp(dot).then_with(|| self.part.as_bytes().cmp(rest)),
        };
        self.layer.as_bytes().cmp(front).then_with(by_part)
    }

    /// Finds the item of this name in items sorted by name.
    pub(crate) fn find<'b, T>(self, items: &'b [T], name: impl Fn(&'b T) -> &'b str) -> Option<usize> {
        items.binary_search_by(|item| self.order(name(item)).reverse()).ok()
    }
}

impl<'a> From<&'a str> for Name<'a> {
    fn from(name: &'a str) -> Self {
        Name { layer: name, part: "" }
    }
}

impl<'a> From<&'a String> for Name<'a> {
    fn from(name: &'a String) -> Self {
        name.as_str().into()
    }
}

impl fmt::Display for Name<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.layer)?;
        if !self.part.is_empty() {
            write!(f, ".{}", self.part)?;
        }
        Ok(())
    }
}

/// Whether a tensor's name cannot be passed on as text of C, or has no layer.
pub(crate) fn is_strange(name: &str) -> bool {
    name.starts_with('.') || name.contains('\0')
}

/// A set of names: filled first, queried afterwards.
#[derive(Debug, Default)]
pub(crate) struct NameSet {
    names: Vec<String>,
    sorted: bool,
}

impl NameSet {
    pub(crate) fn add(&mut self, name: &str) -> Result<()> {
        self.sorted = false;
        memory::push(&mut self.names, memory::text(name)?)
    }

    /// Adds the names of another set.
    pub(crate) fn extend(&mut self, other: NameSet) -> Result<()> {
        memory::reserve(&mut self.names, other.names.len())?;
        for name in other.names {
            memory::push(&mut self.names, name)?;
        }
        self.sort();
        Ok(())
    }

    /// Sorts the names. Required between the last [`NameSet::add`] and the first query.
    pub(crate) fn sort(&mut self) {
        self.names.sort_unstable();
        self.sorted = true;
    }

    pub(crate) fn contains<'a>(&self, name: impl Into<Name<'a>>) -> bool {
        debug_assert!(self.sorted || self.names.is_empty());
        name.into().find(&self.names, String::as_str).is_some()
    }
}

/// Texts with a separator.
pub(crate) struct Joined<'a, T>(pub(crate) &'a [T], pub(crate) &'a str);

impl<T: fmt::Display> fmt::Display for Joined<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, text) in self.0.iter().enumerate() {
            write!(f, "{}{text}", if number > 0 { self.1 } else { "" })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn names_in_two_pieces_are_ordered_as_in_one(layer in "[a./]{0,4}", part in "[a./]{1,3}", other in "[a./]{0,8}") {
            let whole = format!("{layer}.{part}");
            prop_assert_eq!(Name::of(&layer, &part).order(&other), whole.as_str().cmp(&other));
            prop_assert_eq!(Name::from(&layer).order(&other), layer.cmp(&other));
            prop_assert_eq!(Name::of(&layer, &part).to_string(), whole);
        }
    }
}
