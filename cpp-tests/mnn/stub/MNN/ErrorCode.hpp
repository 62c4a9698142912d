// Stands in for MNN's header of this name: the codes that the adapter returns, with MNN's numbers.

#ifndef MNNKV_TESTS_STUB_MNN_ERROR_CODE_HPP
#define MNNKV_TESTS_STUB_MNN_ERROR_CODE_HPP

namespace MNN {

enum ErrorCode {
    NO_ERROR = 0,
    OUT_OF_MEMORY = 1,
    NOT_SUPPORT = 2,
    INVALID_VALUE = 5,
    INPUT_DATA_ERROR = 10,
    FILE_OPEN_FAILED = 32
};

}  // namespace MNN

#endif  // MNNKV_TESTS_STUB_MNN_ERROR_CODE_HPP
