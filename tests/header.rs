//! The committed headers are what cbindgen makes of the exports, and the tables of docs/report.md are those of the library.
//! `MNNKV_WRITE_HEADER=1` writes them instead.
//!
//! cbindgen groups constants, types and functions. It runs once per source file here, so that the constants and structs
//! of a section stand above its functions. The section's banner is the file's `//!` comment.

use mnnkv::session::MemoryStats;
use mnnkv::session::metrics::{Field, Metrics};
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The width of a line.
const LINE: usize = 130;

struct Header {
    path: &'static str,
    about: &'static str,
    includes: &'static [&'static str],
    folder: &'static str,
    sections: &'static [&'static str],
}

const HEADERS: &[Header] = &[
    Header {
        path: "mnnkv.h",
        about: "status codes, versions, element types, layouts of caches",
        includes: &["<stddef.h>", "<stdint.h>"],
        folder: "src/ffi",
        sections: &["status", "version", "cache"],
    },
    Header {
        path: "mnnkv/session.h",
        about: "all that a host needs: a model's KV caches, compressed as a JSON config says",
        includes: &["\"../mnnkv.h\""],
        folder: "src/ffi/session",
        sections: &["handle", "step", "attend", "history", "memory", "chat", "report"],
    },
    Header {
        path: "mnnkv/layout.h",
        about: "cache memory in place: gather, move, compact, release; MNN's quantised caches",
        includes: &["\"../mnnkv.h\""],
        folder: "src/ffi/layout",
        sections: &["edits", "quantised"],
    },
    Header {
        path: "mnnkv/h2o.h",
        about: "eviction by attention: scores of blocks, plans, and the block sums of a session",
        includes: &["<string.h>", "\"session.h\""],
        folder: "src/ffi/h2o",
        sections: &["config", "plan", "sums"],
    },
    Header {
        path: "mnnkv/store.h",
        about: "cold tokens as blobs, their memory returned to the system",
        includes: &["\"../mnnkv.h\""],
        folder: "src/ffi/store",
        sections: &["handle", "blocks", "edits", "statistics"],
    },
    Header {
        path: "mnnkv/gear.h",
        about: "the lossless codec of fp16, bf16, fp32 and int8 words",
        includes: &["\"../mnnkv.h\""],
        folder: "src/ffi/gear",
        sections: &["options", "encode", "decode"],
    },
    Header {
        path: "mnnkv/model/base.h",
        about: "failures of libmnnkv_model, the library of mnnkv/model.h",
        includes: &["\"../../mnnkv.h\""],
        folder: "model/src/ffi",
        sections: &["status"],
    },
    Header {
        path: "mnnkv/model/sizing.h",
        about: "bytes of the KV cache of a model, from its config.json",
        includes: &["\"base.h\""],
        folder: "model/src/ffi",
        sections: &["sizing"],
    },
    Header {
        path: "mnnkv/model/c8.h",
        about: "8-bit codes with a scale and an offset per channel",
        includes: &["\"base.h\""],
        folder: "model/src/ffi",
        sections: &["c8"],
    },
    Header {
        path: "mnnkv/model/msmodelslim.h",
        about: "directories of weights that msmodelslim quantised",
        includes: &["\"base.h\""],
        folder: "model/src/ffi",
        sections: &["msmodelslim"],
    },
    Header {
        path: "mnnkv/model/compressor.h",
        about: "learned compressors of K and V",
        includes: &["\"base.h\""],
        folder: "model/src/ffi",
        sections: &["compressor", "compressor_caches"],
    },
    Header {
        path: "mnnkv/llama.h",
        about: "what only llama.cpp needs, of libmnnkv_llama: attention over its own cache, and its states as blobs",
        includes: &["\"../mnnkv.h\""],
        folder: "llama/src/ffi",
        sections: &["status", "rows", "state"],
    },
];

/// Not a header of another library.
fn is_of_core(path: &str) -> bool {
    !path.starts_with("mnnkv/model/") && path != "mnnkv/llama.h"
}

/// Inline functions, which follow the sections of a header.
const INLINE: (&str, &str) = ("mnnkv/h2o.h", include_str!("../src/ffi/h2o/sum_tile.h"));

/// Further headers, which mnnkv.h lists.
const HAND_WRITTEN: [(&str, &str); 3] = [
    ("mnnkv/load.h", "the functions of these headers, of a library that is loaded at run time"),
    ("mnnkv/model.h", "files that come with a model, of libmnnkv_model"),
    ("mnnkv.hpp", "C++ wrappers; mnnkv/model.hpp has those of model.h"),
];

/// The document that explains a report.
const REPORT: &str = "docs/report.md";

/// What load.h has before and behind the functions of the other headers.
const LOAD: [&str; 2] = [include_str!("../src/ffi/load.h"), include_str!("../src/ffi/load_end.h")];

#[test]
fn the_header_of_a_host_is_short_and_has_the_example_that_is_compiled() {
    let session = HEADERS.iter().find(|header| header.path == "mnnkv/session.h").unwrap();
    let text = generate(session);
    assert!(text.lines().count() <= 330, "session.h has {} lines", text.lines().count());

    let example = text.split("// Example: ").nth(1).unwrap().lines().skip(2);
    let example =
        example.map_while(|line| line.strip_prefix("//   ")).fold(String::new(), |all, line| all + line + "\n");
    let compiled = include_str!("../cpp-tests/c/pure_c.c").split("/* [example] */\n").nth(1).unwrap();
    assert_eq!(example, compiled);
}

#[test]
fn the_headers_that_include_others_name_them_all() {
    let included =
        |text: &'static str| text.lines().filter_map(|line| line.strip_prefix("#include \"")?.strip_suffix('"'));
    let paths = |kind: fn(&str) -> bool| HEADERS.iter().map(|header| header.path).filter(move |path| kind(path));
    assert!(paths(is_of_core).eq(included(include_str!("../include/mnnkv.hpp"))));
    let model = included(include_str!("../include/mnnkv/model.h")).map(|path| format!("mnnkv/{path}"));
    assert!(paths(|path| path.starts_with("mnnkv/model/")).eq(model));
}

#[test]
fn the_committed_headers_and_tables_are_current() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let read = |path: &str| fs::read_to_string(root.join(path)).unwrap_or_default();
    let mut all: Vec<_> = HEADERS.iter().map(|header| (format!("include/{}", header.path), generate(header))).collect();
    all.push(("include/mnnkv/load.h".into(), generate_load()));
    all.push((REPORT.into(), with_tables(&read(REPORT))));
    for (path, generated) in all {
        if std::env::var_os("MNNKV_WRITE_HEADER").is_some() {
            fs::write(root.join(&path), &generated).unwrap();
        }
        assert!(read(&path) == generated, "{path} is stale; run `make header` and commit it");
        let wide = generated.lines().find(|line| line.len() > LINE && !line.starts_with('|'));
        assert!(wide.is_none(), "{path}: {}", wide.unwrap());
    }
}

fn generate(header: &Header) -> String {
    let guard = header.path.to_uppercase().replace(['/', '.'], "_");
    let mut out = format!("// {}: {}.\n//\n", header.path, header.about);
    if header.path == "mnnkv.h" {
        let others = HEADERS[1..].iter().filter(|header| is_of_core(header.path) || header.path == "mnnkv/llama.h");
        let others = others.map(|header| (header.path, header.about)).chain(HAND_WRITTEN);
        others.for_each(|(path, about)| writeln!(out, "//   {path:17} {about}").unwrap());
        out += "//\n";
    }
    write!(out, "// Generated from {} by `make header`; do not edit.", header.folder).unwrap();
    out += if header.path == "mnnkv/session.h" { "\n" } else { " mnnkv/session.h has the conventions.\n" };
    writeln!(out, "\n#ifndef {guard}\n#define {guard}\n").unwrap();
    header.includes.iter().for_each(|name| writeln!(out, "#include {name}").unwrap());
    out += "\n#ifdef __cplusplus\nextern \"C\" {\n#endif\n";
    for section in header.sections {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(header.folder).join(format!("{section}.rs"));
        let source = fs::read_to_string(&file).unwrap();
        let mut banner = source.lines().map_while(|line| line.strip_prefix("//!"));
        let title = banner.next().unwrap();
        let banner: String = banner.map(|line| format!("//{line}\n")).collect();
        write!(out, "\n// ---{title} {}\n{banner}\n", "-".repeat(LINE - 9 - title.len())).unwrap();
        out += &items(&file, &source);
    }
    if header.path == INLINE.0 {
        out += "\n";
        out += INLINE.1;
    }
    out + &format!("\n#ifdef __cplusplus\n}}  // extern \"C\"\n#endif\n\n#endif  // {guard}\n")
}

/// A function of the headers.
struct Function {
    returns: String,
    name: String,
    parameters: String,
    arguments: String,
}

/// The functions that libmnnkv exports.
fn functions() -> Vec<Function> {
    let mut all = Vec::new();
    for header in HEADERS.iter().filter(|header| is_of_core(header.path)) {
        let text = generate(header).replace(INLINE.1, "");
        let code = |line: &&str| !line.starts_with("//");
        for item in text.split("\n\n") {
            let item = item.lines().filter(code).map(str::trim).collect::<Vec<_>>().join(" ");
            let Some((head, parameters)) = item.strip_suffix(");").and_then(|item| item.split_once('(')) else {
                continue;
            };
            let (name, ends) = (head.rsplit([' ', '*']).next().unwrap(), |parameter: &str| {
                parameter.rsplit([' ', '*']).next().filter(|name| *name != "void").unwrap_or_default().to_string()
            });
            assert!(name.starts_with("mnnkv_") && !parameters.contains('('), "{item}");
            all.push(Function {
                returns: head[..head.len() - name.len()].to_string(),
                name: name["mnnkv_".len()..].to_string(),
                parameters: parameters.to_string(),
                arguments: parameters.split(", ").map(ends).collect::<Vec<_>>().join(", "),
            });
        }
    }
    all
}

/// mnnkv/load.h: each function of the other headers as a call of the library that was loaded.
fn generate_load() -> String {
    let mut out =
        "// mnnkv/load.h: libmnnkv loaded at run time, for a program that is built without it.\n//\n".to_string();
    out += "// Generated from the other headers and src/ffi/load.h by `make header`; do not edit.\n//\n\
            // This header defines the functions of all headers of libmnnkv. In one C or C++ file of each program or library that\n\
            // calls them, before any other include of this header, and nowhere else:\n//\n\
            //   #define _GNU_SOURCE  // in C with glibc: before the first include of the file\n\
            //   #define MNNKV_LOAD_IMPLEMENTATION\n//   #include \"mnnkv/load.h\"\n//\n\
            //   const char *why = mnnkv_load(NULL);  // first; go on without mnn-kv where it returns a text\n//\n\
            // Link with -ldl where dlopen needs it. No Rust, and no file of the library, is needed to build the program.\n\n\
            #ifndef MNNKV_LOAD_H\n#define MNNKV_LOAD_H\n\n";
    for path in
        HEADERS.iter().filter_map(|header| header.path.strip_prefix("mnnkv/").filter(|_| is_of_core(header.path)))
    {
        writeln!(out, "#include \"{path}\"").unwrap();
    }
    out += "\n#ifdef __cplusplus\nextern \"C\" {\n#endif\n\n";
    let main = generate(&HEADERS[0]);
    let abi = main.split("#define MNNKV_ABI_VERSION ").nth(1).unwrap();
    let abi = format!("#define MNNKV_LOAD_ABI \"{}\"\n", abi.lines().next().unwrap());
    out +=
        &LOAD[0].replace("#ifdef MNNKV_LOAD_IMPLEMENTATION\n", &format!("#ifdef MNNKV_LOAD_IMPLEMENTATION\n\n{abi}"));
    let functions = functions();
    out += "\nstatic struct mnnkv_functions {\n";
    for Function { returns, name, parameters, .. } in &functions {
        writeln!(out, "    {returns}(*{name})({parameters});").unwrap();
    }
    out += "} mnnkv_loaded;\n\nstatic const char *const mnnkv_load_names[] = {\n";
    functions.iter().for_each(|function| writeln!(out, "    \"mnnkv_{}\",", function.name).unwrap());
    out += "};\n\n";
    for Function { returns, name, parameters, arguments } in &functions {
        let (call, missing) = (
            format!("mnnkv_loaded.{name}({arguments})"),
            match (returns.as_str(), name.as_str()) {
                (_, "last_error") => "mnnkv_load_why",
                ("mnnkv_status ", _) => "MNNKV_UNSUPPORTED",
                ("const char *", _) => "\"\"",
                _ => "0",
            },
        );
        let body = match returns.as_str() {
            "void " => format!("if (mnnkv_loaded.{name}) {{\n        {call};\n    }}"),
            _ => format!("return mnnkv_loaded.{name} ? {call} : {missing};"),
        };
        writeln!(out, "MNNKV_LOAD_HIDDEN {returns}mnnkv_{name}({parameters}) {{\n    {body}\n}}\n").unwrap();
    }
    out = out + LOAD[1] + "\n#ifdef __cplusplus\n}  // extern \"C\"\n#endif\n\n#endif  // MNNKV_LOAD_H\n";
    out.lines().map(|line| wrapped(line) + "\n").collect()
}

/// A line of code that goes on behind a comma where it is too long.
fn wrapped(line: &str) -> String {
    match line.get(..LINE).and_then(|begin| begin.rfind(", ")).filter(|_| line.len() > LINE) {
        Some(comma) => format!("{}\n{}", &line[..=comma], wrapped(&format!("            {}", &line[comma + 2..]))),
        None => line.to_string(),
    }
}

/// The C form of a file's constants, types and functions.
fn items(file: &Path, source: &str) -> String {
    let mut config = cbindgen::Config::from_file(Path::new(env!("CARGO_MANIFEST_DIR")).join("cbindgen.toml")).unwrap();
    // Without this, cbindgen drops structs that no function of the file takes.
    config.export.include = source
        .lines()
        .filter_map(|line| line.strip_prefix("pub struct "))
        .map(|line| line.split([' ', '(', ';']).next().unwrap().to_string())
        .collect();
    // cbindgen does not look into cfg_attr, and takes a file. Tests run at once, hence a name for each.
    static COPIES: AtomicUsize = AtomicUsize::new(0);
    let name = file.file_stem().unwrap().to_str().unwrap();
    let copy = format!("{name}_{}.rs", COPIES.fetch_add(1, Ordering::Relaxed));
    let copy = Path::new(env!("CARGO_TARGET_TMPDIR")).join(copy);
    fs::write(&copy, source.replace("#[cfg_attr(feature = \"capi\", unsafe(no_mangle))]", "#[unsafe(no_mangle)]"))
        .unwrap();
    let mut text = Vec::new();
    cbindgen::Builder::new().with_src(&copy).with_config(config).generate().unwrap().write(&mut text);
    let text = filled(&String::from_utf8(text).unwrap());
    // Neighbouring constants form a list.
    let constant = |item: &str| item.lines().last().is_some_and(|line| line.starts_with("#define"));
    let items: Vec<_> = text.trim().split("\n\n").map(str::trim).collect();
    let mut list = items[0].to_string();
    for pair in items.windows(2) {
        list += if constant(pair[0]) && constant(pair[1]) { "\n" } else { "\n\n" };
        list += pair[1];
    }
    // Structs get tags, so that hosts can declare them without this header.
    let mut structs = list.split("typedef struct {");
    let mut out = structs.next().unwrap().to_string();
    for rest in structs {
        let (fields, rest) = rest.split_once("\n} ").unwrap();
        let name = rest.split(';').next().unwrap();
        write!(out, "typedef struct {name} {{\n{}}} {rest}", commented(name, fields)).unwrap();
    }
    // Structs of other headers, which many hosts need not read.
    out.replace("const mnnkv_int8 *int8;", "const struct mnnkv_int8 *int8;") + "\n"
}

/// As many parameters of a function in a line as fit; cbindgen writes each in one of its own.
fn filled(text: &str) -> String {
    let (mut out, mut used) = (String::new(), LINE);
    for line in text.lines() {
        let parameter = line.trim_start();
        let follows = line.starts_with("        ") && used + 1 + parameter.len() <= LINE;
        out += if follows { " " } else { "\n" };
        out += if follows { parameter } else { line };
        used = if follows { used + 1 + parameter.len() } else { line.len() };
    }
    out
}

/// The fields of a struct, each with a comment of its own. A short one stands behind its field.
fn commented(name: &str, fields: &str) -> String {
    let (mut all, mut comment) = (Vec::new(), Vec::new());
    for line in fields.trim_matches('\n').lines() {
        match line.strip_prefix("    /// ") {
            Some(text) => comment.push(text),
            None => all.push((line, std::mem::take(&mut comment))),
        }
    }
    let short = |(field, comment): &&(&str, Vec<&str>)| {
        comment.len() == 1 && field.len() <= 40 && comment[0].len() <= LINE - 39
    };
    let width = all.iter().filter(short).map(|(field, _)| field.len()).max().unwrap_or(0);
    let mut out = String::new();
    for one in &all {
        let (field, comment) = one;
        assert!(!comment.is_empty(), "{name}: no comment of its own: {field}");
        if short(&one) && width + "  ///< ".len() + comment[0].len() <= LINE {
            writeln!(out, "{field:width$}  ///< {}", comment[0]).unwrap();
        } else {
            comment.iter().for_each(|text| writeln!(out, "    /// {text}").unwrap());
            writeln!(out, "{field}").unwrap();
        }
    }
    out
}

/// The report's document with its tables.
fn with_tables(document: &str) -> String {
    let mut out = document.to_string();
    for (name, fields) in [("numbers", Metrics::FIELDS), ("memory", MemoryStats::FIELDS)] {
        let marks = [format!("<!-- begin {name} -->\n"), format!("<!-- end {name} -->\n")];
        let [(begin, _), (end, _)] = marks.each_ref().map(|mark| out.match_indices(mark).next().expect(REPORT));
        let mut table = String::from("| name | unit | meaning |\n|---|---|---|\n");
        for Field { name, unit, meaning } in fields {
            writeln!(table, "| `{name}` | {unit} | {meaning} |").unwrap();
        }
        out.replace_range(begin + marks[0].len()..end, &table);
    }
    out
}
