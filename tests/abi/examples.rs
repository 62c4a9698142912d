//! The rules by example, and by every declaration of the headers.

use crate::headers::{EXPERIMENTAL, Field, Item, Reader, What};
use crate::{declared, frozen, guard, rules};
use std::fs;
use std::path::Path;

const HEADER: &str = "
#ifndef MNNKV_EXAMPLE_H
#define MNNKV_EXAMPLE_H
#ifdef __cplusplus
extern \"C\" {
#endif
typedef int32_t mnnkv_status;
/// A comment, typedef struct { of which nothing; counts.
#define MNNKV_LEVEL 3
typedef struct mnnkv_handle mnnkv_handle;
typedef struct mnnkv_part {
    uint32_t rows;
    float scale;
} mnnkv_part;
typedef struct mnnkv_options {
    uint32_t struct_size;
    int32_t effort;
    uint32_t reserved[3];
    const mnnkv_part *const *parts;
    int32_t (*run)(void *user, void (*job)(void *it, uint64_t n));
    uint8_t tag;
} mnnkv_options;
mnnkv_status mnnkv_go(mnnkv_handle *handle,
                      const mnnkv_options *options);
const char *mnnkv_name(void);
#ifdef MNNKV_EXPERIMENTAL
void mnnkv_try(uint32_t n);
#endif
static inline int mnnkv_twice(int n) {
    if (n) { n *= 2; }
    return n;
}
#ifdef __cplusplus
}
#endif
#endif
";

fn read(header: &str) -> Vec<Item> {
    Reader::default().text(header)
}

/// The answer of the rules to a change of the header's text.
fn after(from: &str, to: &str) -> String {
    assert_eq!(HEADER.matches(from).count(), 1, "{from}");
    rules::breaks(&read(HEADER), &read(&HEADER.replace(from, to))).join("\n")
}

#[test]
fn a_header_is_read_as_its_declarations() {
    let list = "\
        CONSTANT(0.2.0, MNNKV_LEVEL, 3)\n\n\
        TYPE(0.2.0, mnnkv_status, int32_t)\n\n\
        HANDLE(0.2.0, mnnkv_handle)\n\n\
        STRUCT(0.2.0, mnnkv_options, 48)\n\
        FIELD(0.2.0, mnnkv_options, struct_size, 0, 4, uint32_t)\n\
        FIELD(0.2.0, mnnkv_options, effort, 4, 4, int32_t)\n\
        FIELD(0.2.0, mnnkv_options, reserved, 8, 12, uint32_t[3])\n\
        FIELD(0.2.0, mnnkv_options, parts, 24, 8, const mnnkv_part *const *)\n\
        FIELD(0.2.0, mnnkv_options, run, 32, 8, int32_t (*)(void *, void (*)(void *, uint64_t)))\n\
        FIELD(0.2.0, mnnkv_options, tag, 40, 1, uint8_t)\n\n\
        STRUCT(0.2.0, mnnkv_part, 8)\n\
        FIELD(0.2.0, mnnkv_part, rows, 0, 4, uint32_t)\n\
        FIELD(0.2.0, mnnkv_part, scale, 4, 4, float)\n\n\
        FUNCTION(0.2.0, mnnkv_go, mnnkv_status(mnnkv_handle *, const mnnkv_options *))\n\
        FUNCTION(0.2.0, mnnkv_name, const char *(void))\n\
        FUNCTION(experimental, mnnkv_try, void(uint32_t))\n";
    let dated = frozen::dated(&[], &read(HEADER), "0.2.0");
    assert_eq!(frozen::list(&dated).split_once("\n\n").unwrap().1, list);
    assert_eq!(frozen::read(list), dated);
}

#[test]
fn a_change_that_breaks_programs_is_named() {
    let effort = "    int32_t effort;\n";
    for (from, to, said) in [
        ("mnnkv_status mnnkv_go(", "mnnkv_status mnnkv_run(", "mnnkv_go is no longer declared"),
        ("const mnnkv_options *options);", "const mnnkv_options *options, uint32_t n);", "mnnkv_go was mnnkv_status("),
        ("mnnkv_handle *handle,", "const mnnkv_handle *handle,", "mnnkv_go was mnnkv_status("),
        ("const char *mnnkv_name", "char *mnnkv_name", "mnnkv_name was const char *(void), is char *(void)"),
        ("MNNKV_LEVEL 3", "MNNKV_LEVEL 4", "MNNKV_LEVEL was 3, is 4: programs have the old value"),
        ("typedef int32_t mnnkv_status", "typedef int64_t mnnkv_status", "mnnkv_status was int32_t, is int64_t"),
        ("typedef struct mnnkv_handle mnnkv_handle", "typedef uint64_t mnnkv_handle", "mnnkv_handle was a handle"),
        (effort, "", "mnnkv_options::effort is gone"),
        (effort, "    uint32_t effort;\n", "mnnkv_options::effort was int32_t at byte 4, is uint32_t at byte 4"),
        (
            effort,
            "    uint64_t seed;\n    int32_t effort;\n",
            "mnnkv_options::effort was int32_t at byte 4, is int32_t at byte 16",
        ),
        // Byte 20 is padding.
        ("reserved[3];", "reserved[3];\n    uint32_t seed;", "mnnkv_options::seed is new at byte 20"),
        ("uint8_t tag;", "uint8_t tag;\n    uint32_t seed;", "mnnkv_options::seed is new at byte 44"),
        ("float scale;", "float scale;\n    float offset;", "mnnkv_part was 8 bytes, is 12: it has no struct_size"),
        (
            "const char *mnnkv_name(void);\n#ifdef MNNKV_EXPERIMENTAL\n",
            "#ifdef MNNKV_EXPERIMENTAL\nconst char *mnnkv_name(void);\n",
            "mnnkv_name needs MNNKV_EXPERIMENTAL now",
        ),
    ] {
        assert!(after(from, to).starts_with(said), "{to}: {}", after(from, to));
    }
}

#[test]
fn a_change_that_breaks_no_program_is_accepted() {
    for (from, to) in [
        ("#ifdef MNNKV_EXPERIMENTAL", "uint32_t mnnkv_count(void);\n#ifdef MNNKV_EXPERIMENTAL"),
        ("#define MNNKV_LEVEL 3", "#define MNNKV_LEVEL 3\n#define MNNKV_DEPTH 4"),
        ("uint8_t tag;", "uint8_t tag;\n    uint64_t seed;"),
        ("uint32_t reserved[3];", "uint32_t seed;\n    uint32_t reserved[2];"),
        ("mnnkv_handle *handle,", "mnnkv_handle *it,"),
        ("/// A comment", "/// Another"),
        ("void mnnkv_try(uint32_t n);", "void mnnkv_try(uint64_t n);"),
        ("#ifdef MNNKV_EXPERIMENTAL\nvoid mnnkv_try(uint32_t n);\n#endif\n", "void mnnkv_try(uint32_t n);\n"),
    ] {
        assert_eq!(after(from, to), "", "{to}");
    }
}

#[test]
fn an_addition_is_dated_with_its_version() {
    let old = frozen::dated(&[], &read(HEADER), "0.2.0");
    let grown = HEADER
        .replace("uint8_t tag;", "uint8_t tag;\n    uint64_t seed;")
        .replace("uint32_t n);\n#endif", "float n);\n#endif");
    let stable =
        grown.replace("#ifdef MNNKV_EXPERIMENTAL\nvoid mnnkv_try(float n);\n#endif\n", "void mnnkv_try(float n);\n");
    let list = frozen::list(&frozen::dated(&old, &read(&stable), "0.3.0"));
    let new: Vec<&str> = list.lines().filter(|line| line.contains("0.3.0")).collect();
    let seed = "FIELD(0.3.0, mnnkv_options, seed, 48, 8, uint64_t)";
    assert_eq!(new, [seed, "FUNCTION(0.3.0, mnnkv_try, void(float))"]);
    assert!(
        frozen::list(&frozen::dated(&old, &read(&grown), "0.3.0")).contains("(experimental, mnnkv_try, void(float))")
    );
}

#[test]
fn no_declaration_of_the_headers_can_be_dropped_or_changed() {
    let [main, model] = declared(&Path::new(env!("CARGO_MANIFEST_DIR")).join("include"));
    for all in [main, model] {
        assert!(all.len() > 50, "{} declarations", all.len());
        assert_eq!(rules::breaks(&all, &all), [""; 0]);
        let is_reserved = |field: &Field| field.name == "reserved" || field.name.ends_with("_reserved");
        for (i, item) in all.iter().enumerate().filter(|(_, item)| item.since != EXPERIMENTAL) {
            let names_it = |changed: &[Item]| {
                let said = rules::breaks(&all, changed);
                said.len() == 1 && said[0].starts_with(&item.name)
            };
            let mut changed = all.clone();
            changed.remove(i);
            assert!(names_it(&changed), "without {}", item.name);
            let What::Struct { fields, .. } = &item.what else { continue };
            for (j, field) in fields.iter().enumerate().filter(|(_, field)| !is_reserved(field)) {
                let mut changed = all.clone();
                let What::Struct { fields, .. } = &mut changed[i].what else { unreachable!() };
                fields[j].kind += " *";
                assert!(names_it(&changed), "{} of another type", field.name);
                let What::Struct { fields, .. } = &mut changed[i].what else { unreachable!() };
                fields.remove(j);
                assert!(names_it(&changed), "without {}", field.name);
            }
        }
    }
}

/// A project of one header, by a test's name.
fn project(name: &str, abi_version: u32, body: &str) -> std::path::PathBuf {
    let root = Path::new(env!("CARGO_TARGET_TMPDIR")).join("abi").join(name);
    fs::create_dir_all(root.join("include/mnnkv")).unwrap();
    fs::create_dir_all(root.join("abi")).unwrap();
    let text = format!("#define MNNKV_ABI_VERSION {abi_version}\n{body}\n");
    fs::write(root.join("include/mnnkv.h"), "// A comment.\n#include \"mnnkv/base.h\"\n").unwrap();
    fs::write(root.join("include/mnnkv/base.h"), text).unwrap();
    root
}

#[test]
fn the_abi_is_written_only_if_older_programs_keep_running_or_its_number_is_raised() {
    let name = "written";
    let root = project(name, 1, "void mnnkv_a(void);");
    drop(fs::remove_dir_all(root.join("abi")));
    let list = |text| fs::read_to_string(root.join("abi/mnnkv.abi")).unwrap().contains(text);
    let frozen = |version, text| {
        let header = root.join("abi").join(version).join("mnnkv/base.h");
        fs::read_to_string(header).is_ok_and(|header| header.contains(text))
    };
    fs::create_dir_all(root.join("abi")).unwrap();
    assert!(guard(&root, "0.2.0", false).unwrap_err().contains("Run `make abi`"));
    guard(&root, "0.2.0", true).unwrap();
    guard(&root, "0.2.0", false).unwrap();

    // Before the release anything goes, the frozen headers follow its additions, and afterwards they stay.
    project(name, 1, "int mnnkv_a(void);");
    assert!(guard(&root, "0.1.9", false).unwrap_err().contains("mnnkv_a was void(void), is int(void)"));
    guard(&root, "0.1.9", true).unwrap();
    project(name, 1, "void mnnkv_a(void);");
    guard(&root, "0.1.9", true).unwrap();
    project(name, 1, "void mnnkv_a(void);\nvoid mnnkv_b(void);");
    assert!(guard(&root, "0.2.0", false).unwrap_err().contains("FUNCTION(0.2.0, mnnkv_b, void(void))"));
    guard(&root, "0.2.0", true).unwrap();
    assert!(frozen("0.2.0", "mnnkv_b"));
    project(name, 1, "void mnnkv_a(void);\nvoid mnnkv_b(void);\nvoid mnnkv_c(void);");
    guard(&root, "0.3.0", true).unwrap();
    assert!(!frozen("0.2.0", "mnnkv_c") && list("FUNCTION(0.3.0, mnnkv_c"));
    guard(&root, "0.3.0", false).unwrap();

    project(name, 1, "void mnnkv_b(void);\nvoid mnnkv_c(void);");
    for writes in [false, true] {
        let refusal = guard(&root, "0.3.0", writes).unwrap_err();
        assert!(refusal.contains("  mnnkv_a is no longer declared: programs that call it do not start"));
        assert!(refusal.contains("raise MNNKV_ABI_VERSION"));
    }
    assert!(list("mnnkv_a"));
    // Nor by an edit of the list.
    fs::write(root.join("abi/mnnkv.abi"), "").unwrap();
    assert!(guard(&root, "0.3.0", true).unwrap_err().contains("mnnkv_a is no longer declared"));
    project(name, 1, "void mnnkv_a(void);\nvoid mnnkv_b(void);\nvoid mnnkv_c(void);");
    guard(&root, "0.3.0", true).unwrap();

    project(name, 2, "void mnnkv_b(void);");
    assert!(guard(&root, "0.4.0", false).unwrap_err().contains("Run `make abi`"));
    guard(&root, "0.4.0", true).unwrap();
    guard(&root, "0.4.0", false).unwrap();
    assert!(frozen("0.4.0", "mnnkv_b") && !frozen("0.2.0", "mnnkv_b") && !list("mnnkv_a"));
}
