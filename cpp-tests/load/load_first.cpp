// Loads the library before the suites of a program that is built without it, some of which call it themselves.

#include <cstdio>

#include <mnnkv/load.h>

namespace {

const bool loaded = [] {
    const char* why = mnnkv_load(nullptr);
    if (why != nullptr) {
        std::puts(why);
    }
    return why == nullptr;
}();

}  // namespace
