// Stands in for MNN's header of this name: printed lines go to a log for tests.

#ifndef MNNKV_TESTS_STUB_MNN_DEFINE_H
#define MNNKV_TESTS_STUB_MNN_DEFINE_H

namespace mnn_stub {

#if defined(__GNUC__) || defined(__clang__)
__attribute__((format(printf, 1, 2)))
#endif
void print(const char* format, ...);

}  // namespace mnn_stub

#define MNN_PRINT(...) mnn_stub::print(__VA_ARGS__)
#define MNN_ERROR(...) mnn_stub::print("error: " __VA_ARGS__)

#endif  // MNNKV_TESTS_STUB_MNN_DEFINE_H
