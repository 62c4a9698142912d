// Test data of the model suites, and the wrappers that they test.

#ifndef MNNKV_TESTS_MODEL_FILES_HPP
#define MNNKV_TESTS_MODEL_FILES_HPP

#include "support.hpp"

#include <mnnkv/model.hpp>

/// As support::read_file, from the test data of the model crate.
inline support::bytes read_model_file(const std::string& name) { return support::read_file("../model/testdata/" + name); }
inline std::string read_model_text(const std::string& name) { return support::read_text("../model/testdata/" + name); }

#endif
