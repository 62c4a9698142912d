//! The README's example is the program that cpp-tests builds and runs.

#[test]
fn the_example_is_the_one_that_is_compiled() {
    let readme = include_str!("../../README.md");
    let source = include_str!("../../cpp-tests/quoted/readme.cpp");
    let example = readme.split("```cpp\n").nth(1).unwrap().split("```").next().unwrap();
    let compiled = source.split("// [readme]\n").nth(1).unwrap();
    assert_eq!(example, compiled);
}
