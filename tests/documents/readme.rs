//! The README's examples are the program that cpp-tests builds and runs.

#[test]
fn the_examples_are_those_that_are_compiled() {
    let readme = include_str!("../../README.md");
    let source = include_str!("../../cpp-tests/quoted/readme.cpp");
    let examples: Vec<&str> = readme.split("```cpp\n").skip(1).map(|text| text.split("```").next().unwrap()).collect();
    let compiled: Vec<&str> = source.split("// [readme]\n").skip(1).step_by(2).collect();
    assert_eq!(examples, compiled);
    assert!(examples.len() == 2 && readme.lines().count() < 120, "a reader decides in a minute");
}
