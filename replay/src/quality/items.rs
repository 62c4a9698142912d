//! The texts that are judged, and files of them.

use crate::dumps::read_text;
use crate::error::{Error, Result};
use crate::transformer::Shape;
use serde_json::{Map, Value};
use std::collections::HashSet;
use std::path::Path;

/// The largest file of items in bytes.
const MAX_ITEMS: u64 = 256 << 20;

/// A text, and which of its tokens are scored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// Items of a kind share rows of the results.
    pub kind: String,
    /// Its name, which no other item has.
    pub id: String,
    /// All tokens up to the last that is scored.
    pub tokens: Vec<u32>,
    /// The tokens before this one may be evicted or compressed before the model sees those from it on; at least 1.
    pub question_from: usize,
    /// The scored tokens, ascending, none of them before the question. At least one.
    pub scored: Vec<usize>,
}

impl Item {
    /// Tokens of the prompt.
    pub(super) fn prompt(&self) -> &[u32] {
        &self.tokens[..self.question_from]
    }
}

/// The items of a file: an object in JSON on each line, with `kind`, `tokens`, `question_from`, `score_from`, `score_to`, and
/// `id` if it has a name. Other fields are not read.
///
/// Fails if an item does not fit the model, by line and field.
pub fn read_items(path: &Path, shape: &Shape) -> Result<Vec<Item>> {
    let fail = |text: String| Error::new(path.display(), text);
    let text = read_text(path, MAX_ITEMS)?;
    let (mut items, mut ids) = (Vec::new(), HashSet::new());
    for (number, line) in text.split(|byte| *byte == b'\n').enumerate() {
        let place = format!("{}: line {}", path.display(), number + 1);
        let line = std::str::from_utf8(line).map_err(|_| Error::new(&place, "is not UTF-8"))?;
        if line.trim().is_empty() {
            continue;
        }
        let item = item(line, number, shape).map_err(|text| Error::new(&place, text))?;
        if !ids.insert(item.id.clone()) {
            return Err(Error::new(place, format!("id {:?} comes twice", item.id)));
        }
        items.push(item);
    }
    if items.is_empty() { Err(fail("has no items".into())) } else { Ok(items) }
}

fn item(line: &str, number: usize, shape: &Shape) -> std::result::Result<Item, String> {
    let object: Map<String, Value> = serde_json::from_str(line).map_err(|e| {
        let text = e.to_string();
        let text = text.split(" at line").next().unwrap_or_default();
        format!("column {}: {text}", e.column())
    })?;
    let kind = object.get("kind").and_then(Value::as_str).filter(|kind| !kind.is_empty());
    let kind = kind.ok_or("kind: a text expected")?.to_string();
    let tokens = tokens(&object, shape)?;
    let place = |field: &str, least: usize, most: usize, what: &str| {
        let value = object.get(field).ok_or_else(|| format!("{field}: is missing"))?;
        let place = value.as_u64().and_then(|place| usize::try_from(place).ok());
        place
            .filter(|place| (least..=most).contains(place))
            .ok_or_else(|| format!("{field}: is {value}; {least} to {most}, {what}, expected"))
    };
    let question_from = place("question_from", 1, tokens.len() - 1, "a token of the item behind the first")?;
    let score_from = place("score_from", question_from, tokens.len() - 1, "a token from question_from on")?;
    let score_to = place("score_to", score_from + 1, tokens.len(), "behind score_from, within the tokens")?;
    let id = match object.get("id") {
        None => format!("line {}", number + 1),
        Some(Value::String(id)) => id.clone(),
        Some(other) => return Err(format!("id: is {other}; a text expected")),
    };
    Ok(Item { kind, id, tokens: tokens[..score_to].to_vec(), question_from, scored: (score_from..score_to).collect() })
}

fn tokens(object: &Map<String, Value>, shape: &Shape) -> std::result::Result<Vec<u32>, String> {
    let values = object.get("tokens").and_then(Value::as_array).ok_or("tokens: an array of token ids expected")?;
    if !(2..=shape.context).contains(&values.len()) {
        return Err(format!("tokens: {} of them; 2 to {}, the model's context, expected", values.len(), shape.context));
    }
    let token = |(at, value): (usize, &Value)| {
        let token = value.as_u64().filter(|token| *token < shape.vocabulary as u64);
        let text =
            || format!("tokens[{at}]: is {value}; 0 to {}, a token of the model, expected", shape.vocabulary - 1);
        token.map(|token| token as u32).ok_or_else(text)
    };
    values.iter().enumerate().map(token).collect()
}
