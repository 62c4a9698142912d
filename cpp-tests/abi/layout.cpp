// Every line of abi/*.abi is the view of this compiler of the headers. tests/abi.rs writes and guards these lists.

#define MNNKV_EXPERIMENTAL
#include <mnnkv.h>
#ifdef MNNKV_MODEL
#include <mnnkv/model.h>
#endif

#include <cstddef>
#include <type_traits>

namespace {

// Offsets and sizes are listed for LP64.
constexpr bool is_lp64 = sizeof(void*) == 8 && sizeof(std::size_t) == 8;

#define CONSTANT(since, name, value) static_assert(name == (value), #name);
#define TYPE(since, name, type) static_assert(std::is_same<name, type>::value, #name);
#define HANDLE(since, name) static_assert(std::is_same<struct name, name>::value, #name);
#define STRUCT(since, name, bytes) static_assert(!is_lp64 || sizeof(name) == (bytes), #name);
#define FIELD(since, owner, name, at, bytes, type)                                             \
    static_assert(std::is_same<decltype(owner::name), type>::value, "type of " #owner "::" #name); \
    static_assert(!is_lp64 || offsetof(owner, name) == (at), "offset of " #owner "::" #name);      \
    static_assert(!is_lp64 || sizeof(type) == (bytes), "bytes of " #owner "::" #name);
#define FUNCTION(since, name, type) static_assert(std::is_same<decltype(name), type>::value, "type of " #name);

#include "mnnkv.abi"
#ifdef MNNKV_MODEL
#include "model.abi"
#endif

}  // namespace
