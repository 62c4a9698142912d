//! The table of keys against the manual, and against values of every type.

use super::{clean, on, parse, refused};
use crate::session::config::keys::{Decimal, Float, KeyType, OneOf, Switch, Text, Whole, Wholes, each};
use serde_json::{Value, json};

/// A declaration of the table of keys.
pub(in crate::session::config) trait Declared {
    /// Type, default and range, as in the manual.
    fn row(&self) -> [String; 3];
    /// The default in JSON.
    fn usual(&self) -> Value;
    /// Values of the right type, out of range.
    fn outside(&self) -> Vec<Value>;
}

impl Declared for Switch {
    fn row(&self) -> [String; 3] {
        ["switch".into(), self.0.to_string(), self.allowed().to_string()]
    }

    fn usual(&self) -> Value {
        json!(self.0)
    }

    fn outside(&self) -> Vec<Value> {
        Vec::new()
    }
}

impl<T: Copy + PartialOrd + TryFrom<i128> + Into<i128> + std::fmt::Display> Declared for Whole<T> {
    fn row(&self) -> [String; 3] {
        ["whole".into(), self.0.to_string(), format!("{} to {}", self.1.start(), self.1.end())]
    }

    fn usual(&self) -> Value {
        json!(self.0.into() as i64)
    }

    fn outside(&self) -> Vec<Value> {
        let (least, most) = ((*self.1.start()).into() as i64, (*self.1.end()).into() as i64);
        let mut outside = vec![json!(least - 1), json!(most + 1), json!(i64::MIN), json!(u64::MAX)];
        outside.extend([json!(least as f64 + 0.5), json!(1e300), json!(-1e300), json!(f64::MIN_POSITIVE)]);
        outside
    }
}

impl Declared for Wholes {
    fn row(&self) -> [String; 3] {
        ["wholes".into(), "[]".into(), format!("each {} to {}", self.0.start(), self.0.end())]
    }

    fn usual(&self) -> Value {
        json!([])
    }

    fn outside(&self) -> Vec<Value> {
        Vec::new()
    }
}

impl<T: Float + Into<f64>> Declared for Decimal<T> {
    fn row(&self) -> [String; 3] {
        ["real".into(), self.0.to_string(), format!("{} to {}", self.1.start(), self.1.end())]
    }

    fn usual(&self) -> Value {
        json!(Into::<f64>::into(self.0))
    }

    fn outside(&self) -> Vec<Value> {
        let (least, most): (f64, f64) = ((*self.1.start()).into(), (*self.1.end()).into());
        vec![json!(least - 1e-3), json!(most + 1.0), json!(1e300), json!(-1e300), json!(i64::MIN)]
    }
}

impl Declared for Text {
    fn row(&self) -> [String; 3] {
        ["text".into(), format!("{:?}", self.0), "without control characters".into()]
    }

    fn usual(&self) -> Value {
        json!(self.0)
    }

    fn outside(&self) -> Vec<Value> {
        Vec::new()
    }
}

impl<T: Copy> Declared for OneOf<T> {
    fn row(&self) -> [String; 3] {
        ["name".into(), format!("{:?}", self.0[0].0), self.allowed().to_string()]
    }

    fn usual(&self) -> Value {
        json!(self.0[0].0)
    }

    fn outside(&self) -> Vec<Value> {
        let padded = format!(" {}", self.0[0].0);
        vec![json!(""), json!(self.0[0].0.to_uppercase()), json!(padded), json!("x".repeat(10_000))]
    }
}

#[test]
fn the_manual_says_what_is_declared() {
    let manual: Vec<Vec<String>> = include_str!("../../../../docs/config.md")
        .lines()
        .filter_map(|line| line.strip_prefix("| `"))
        .map(|line| line.split(" | ").map(|cell| cell.trim_matches(['`', '|', ' ']).to_owned()).collect())
        .collect();
    let mut row = manual.iter();
    each(|name, declared| {
        let row = row.next().unwrap_or_else(|| panic!("the manual lacks {name}"));
        let [kind, default, range] = declared.row();
        assert_eq!(row[..4], [name.to_owned(), kind, default, range]);
        assert!(row.len() == 6 && !row[4].is_empty() && !row[5].is_empty(), "{name}");
    });
    assert_eq!(row.next(), None);
}

#[test]
fn each_default_may_be_written_out() {
    for switches in [json!({}), on(json!({}))] {
        let mut written = json!({});
        each(|name, declared| written[name] = declared.usual());
        written.as_object_mut().unwrap().extend(switches.as_object().unwrap().clone());
        let (given, warnings) = parse(written).unwrap();
        assert_eq!(clean(switches.clone()), given);
        let idle = warnings.iter().filter(|warning| warning.contains("no effect")).count();
        let expected = if switches == json!({}) { 0 } else { 1 };
        assert_eq!(idle, expected, "the ratio of the other mode: {warnings:?}");
    }
}

#[test]
fn wrong_types_and_values_out_of_range_name_the_key() {
    let types = [json!(null), json!(true), json!("text"), json!(0.5), json!(1), json!([1, 2]), json!({"a": 1})];
    each(|name, declared| {
        let usual = declared.usual();
        let same = |value: &Value| std::mem::discriminant(value) == std::mem::discriminant(&usual);
        for value in types.iter().filter(|value| !same(value)).cloned().chain(declared.outside()) {
            let error = refused(json!({ name: value }).to_string().as_bytes());
            assert!(error.message().starts_with(&format!("{name} is ")), "{error}");
            assert!(error.message().ends_with(" expected"), "{error}");
        }
    });
}
