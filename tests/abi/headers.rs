//! The declarations of headers: constants, types, structs with their layout, functions.
//!
//! The headers are cbindgen's and regular. A declaration of another form ends the test. Layouts are those of LP64:
//! pointers and size_t have 8 bytes, and numbers are aligned to their size. `cpp-tests/abi/layout.cpp` compares all of
//! it with the compiler of the machine.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// `since` of declarations behind MNNKV_EXPERIMENTAL.
pub const EXPERIMENTAL: &str = "experimental";

#[derive(Clone, Debug, PartialEq)]
pub struct Item {
    pub name: String,
    /// The version that it came in, EXPERIMENTAL, or empty: not known from a header.
    pub since: String,
    pub what: What,
}

#[derive(Clone, Debug, PartialEq)]
pub enum What {
    Constant(String),
    Type(String),
    Handle,
    Struct { bytes: usize, fields: Vec<Field> },
    Function(String),
}

#[derive(Clone, Debug, PartialEq)]
pub struct Field {
    pub name: String,
    pub since: String,
    pub at: usize,
    pub bytes: usize,
    pub kind: String,
}

/// Reads headers one after the other: a later one may use types of an earlier one.
#[derive(Default)]
pub struct Reader {
    files: Vec<PathBuf>,
    /// Bytes and alignment by name.
    types: BTreeMap<String, (usize, usize)>,
}

impl Reader {
    /// The declarations of a header and of those that it includes, without those read before.
    pub fn file(&mut self, path: &Path) -> Vec<Item> {
        let path = path.canonicalize().unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        if self.files.contains(&path) {
            return Vec::new();
        }
        self.files.push(path.clone());
        let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let included = text.lines().filter_map(|line| line.strip_prefix("#include \"")?.strip_suffix('"'));
        let mut items: Vec<Item> = included.flat_map(|name| self.file(&path.parent().unwrap().join(name))).collect();
        items.extend(self.text(&text));
        items
    }

    /// The declarations of one header.
    pub fn text(&mut self, text: &str) -> Vec<Item> {
        let mut items = Vec::new();
        // The conditions around a line: whether it counts, and whether it is experimental.
        let mut conditions: Vec<(bool, bool)> = Vec::new();
        let mut open: Vec<String> = Vec::new();
        for line in text.lines().map(without_comment) {
            let counts = conditions.iter().all(|(counts, _)| *counts);
            let since = if conditions.iter().any(|(_, fenced)| *fenced) { EXPERIMENTAL } else { "" };
            if let Some(directive) = line.strip_prefix('#') {
                let (word, rest) = directive.split_once(' ').unwrap_or((directive, ""));
                match word {
                    "ifndef" => conditions.push((true, false)),
                    // Compilers see the rest differently: it belongs to inline functions.
                    "if" | "ifdef" => conditions.push((rest == "MNNKV_EXPERIMENTAL", rest == "MNNKV_EXPERIMENTAL")),
                    "endif" => drop(conditions.pop()),
                    "define" if counts => items.extend(constant(rest, since)),
                    _ => {}
                }
                continue;
            }
            for token in tokens(line).filter(|_| counts) {
                open.push(token);
                let depth = open.iter().filter(|token| *token == "{").count()
                    - open.iter().filter(|token| *token == "}").count();
                let is_inline = open[0] == "static";
                if depth == 0 && open.last().is_some_and(|token| token == if is_inline { "}" } else { ";" }) {
                    let declared: Vec<&str> = open[..open.len() - 1].iter().map(String::as_str).collect();
                    if !is_inline {
                        items.push(self.declaration(&declared, since));
                    }
                    open.clear();
                }
            }
        }
        assert!(open.is_empty() && conditions.is_empty(), "a declaration without an end: {open:?}");
        items
    }

    fn declaration(&mut self, tokens: &[&str], since: &str) -> Item {
        let (name, what) = match tokens {
            ["typedef", "struct", name, "{", body @ .., "}", _] => (name.to_string(), self.layout(name, body, since)),
            ["typedef", "struct", name, _] => (name.to_string(), What::Handle),
            ["typedef", rest @ ..] => {
                let (name, kind) = declarator(rest);
                let size = self.size(&kind);
                self.types.insert(name.clone(), size);
                (name, What::Type(kind))
            }
            _ => {
                let (name, kind) = declarator(tokens);
                assert!(kind.ends_with(')'), "{name} is neither a type nor a function");
                (name, What::Function(kind))
            }
        };
        Item { name, since: since.into(), what }
    }

    fn layout(&mut self, name: &str, body: &[&str], since: &str) -> What {
        let (mut end, mut largest, mut fields) = (0_usize, 1, Vec::new());
        for field in body.split(|token| *token == ";").filter(|field| !field.is_empty()) {
            let (name, kind) = declarator(field);
            let (bytes, align) = self.size(&kind);
            let at = end.next_multiple_of(align);
            (end, largest) = (at + bytes, largest.max(align));
            fields.push(Field { name, since: since.into(), at, bytes, kind });
        }
        let bytes = end.next_multiple_of(largest);
        self.types.insert(name.into(), (bytes, largest));
        What::Struct { bytes, fields }
    }

    /// Bytes and alignment of a type.
    fn size(&self, kind: &str) -> (usize, usize) {
        if let Some((element, count)) = kind.strip_suffix(']').and_then(|kind| kind.split_once('[')) {
            let (bytes, align) = self.size(element);
            return (bytes * count.parse::<usize>().expect("the length of an array is a number"), align);
        }
        let bytes = match kind {
            "char" | "int8_t" | "uint8_t" => 1,
            "int16_t" | "uint16_t" => 2,
            "float" | "int32_t" | "uint32_t" => 4,
            "double" | "int64_t" | "uint64_t" | "size_t" => 8,
            pointer if pointer.contains('*') => 8,
            name => return *self.types.get(name).unwrap_or_else(|| panic!("{name} is a type of unknown size")),
        };
        (bytes, bytes)
    }
}

/// A line without its comment and the blanks at its end. No header has a string with `//`.
pub fn without_comment(line: &str) -> &str {
    line.find("//").map_or(line, |at| &line[..at]).trim_end()
}

/// A macro with a value. Versions change with every release.
fn constant(definition: &str, since: &str) -> Option<Item> {
    let (name, value) = definition.split_once(' ')?;
    let counts = !name.starts_with("MNNKV_VERSION_");
    counts.then(|| Item { name: name.into(), since: since.into(), what: What::Constant(value.trim().into()) })
}

fn is_word(text: &str) -> bool {
    text.starts_with(|c: char| c.is_alphanumeric() || c == '_')
}

/// Words, and signs one by one.
fn tokens(line: &str) -> impl Iterator<Item = String> {
    let mut found: Vec<String> = Vec::new();
    let mut joins = false;
    for c in line.chars() {
        let in_word = c.is_alphanumeric() || c == '_';
        match found.last_mut() {
            Some(last) if in_word && joins => last.push(c),
            _ if c != ' ' => found.push(c.into()),
            _ => {}
        }
        joins = in_word;
    }
    found.into_iter()
}

/// The name and the type of `type name`, `type name[3]`, `type (*name)(...)` or `type name(...)`.
fn declarator(tokens: &[&str]) -> (String, String) {
    let bracket = tokens.iter().position(|token| "([".contains(token)).unwrap_or(tokens.len());
    let at = if tokens.get(bracket + 1) == Some(&"*") { bracket + 2 } else { bracket - 1 };
    assert!(at > 0 && is_word(tokens[at]), "a declaration without a name: {tokens:?}");
    let mut kind = String::new();
    for token in &tokens[..at] {
        let blank =
            (is_word(token) || "*(".contains(token)) && kind.ends_with(|c: char| c.is_alphanumeric() || c == '_');
        kind += if blank { " " } else { "" };
        kind += token;
    }
    let mut rest = &tokens[at + 1..];
    if let [")", after @ ..] = rest {
        kind += ")";
        rest = after;
    }
    match rest {
        ["(", list @ .., ")"] => kind += &format!("({})", parameters(list)),
        array => kind += &array.concat(),
    }
    (tokens[at].into(), kind)
}

fn parameters(list: &[&str]) -> String {
    if list == ["void"] {
        return "void".into();
    }
    let mut depth = 0;
    let of_this_list = |token: &&str| {
        depth += i32::from(*token == "(") - i32::from(*token == ")");
        depth == 0 && *token == ","
    };
    list.split(of_this_list).map(|parameter| declarator(parameter).1).collect::<Vec<_>>().join(", ")
}
