// Structs that begin with struct_size, in all sizes: of older and newer headers, forgotten ones, and nonsense.

#ifndef MNNKV_TESTS_STRUCT_SIZES_HPP
#define MNNKV_TESTS_STRUCT_SIZES_HPP

#include "refusal.hpp"

namespace support {

/// Its size in the first header that had it.
template <class T>
constexpr std::size_t first_size(const T*) {
    return sizeof(T);
}
constexpr std::size_t first_size(const mnnkv_layout*) { return offsetof(mnnkv_layout, int8); }
constexpr std::size_t first_size(const mnnkv_store_config*) { return 32; }
constexpr std::size_t first_size(const mnnkv_store_statistics*) { return 128; }
constexpr std::size_t first_size(const mnnkv_session_options*) { return offsetof(mnnkv_session_options, attends); }

/// Tries one struct in all sizes; `call` passes it to a function and must succeed with the good one. `oldest`: its size
/// in the first header that had it.
template <class T, class Call>
void check_sizes(const T& good, Call call, std::size_t oldest = first_size(static_cast<const T*>(nullptr))) {
    // A struct of a newer header: 40 unknown bytes behind the known ones.
    struct newer {
        T known;
        std::uint8_t tail[40];
    } given;
    std::memset(&given, 0, sizeof given);
    given.known = good;
    const auto with_size = [&](std::size_t size) {
        given.known.struct_size = static_cast<std::uint32_t>(size);
        return call(&given.known);
    };
    EXPECT_TRUE(ok(with_size(sizeof(T))));
    for (const std::size_t size : {std::size_t{0}, std::size_t{1}, std::size_t{4}, oldest / 2, oldest - 4, oldest - 1,
                                   std::size_t{4097}, std::size_t{1} << 20, std::size_t{UINT32_MAX}}) {
        EXPECT_TRUE(refuses(bad, "struct_size", [&] { return with_size(size); })) << size;
    }
    for (std::size_t size = oldest; size < sizeof(T); ++size) {
        EXPECT_TRUE(ok(with_size(size))) << "an older header: size " << size;
    }
    for (const std::size_t size : {sizeof(T) + 1, sizeof(T) + 8, sizeof(T) + 40}) {
        EXPECT_TRUE(ok(with_size(size))) << "unknown fields are 0: size " << size;
    }
    for (const std::size_t at : {std::size_t{0}, std::size_t{7}, std::size_t{39}}) {
        given.tail[at] = 1;
        EXPECT_TRUE(ok(with_size(sizeof(T) + at))) << "bytes past struct_size are not looked at";
        EXPECT_TRUE(answers(with_size(sizeof(T) + at + 1), MNNKV_UNSUPPORTED)) << "an unknown field is set";
        given.tail[at] = 0;
    }
}

/// Fills one output struct in all sizes; `call` passes it to a function that must succeed. `oldest` as in check_sizes.
template <class T, class Call>
void check_output_sizes(Call call, std::size_t oldest = first_size(static_cast<const T*>(nullptr))) {
    struct {
        T known;
        std::uint8_t tail[40];
    } given;
    const auto with_size = [&](std::size_t size) {
        std::memset(&given, 0x5A, sizeof given);
        given.known.struct_size = static_cast<std::uint32_t>(size);
        return call(&given.known);
    };
    T expected = mnnkv::make<T>();
    ASSERT_TRUE(ok(call(&expected)));
    for (const std::size_t extra : {0u, 1u, 8u, 40u}) {
        ASSERT_TRUE(ok(with_size(sizeof(T) + extra)));
        EXPECT_EQ(given.known.struct_size, sizeof(T) + extra) << "what the caller set";
        given.known.struct_size = expected.struct_size;
        EXPECT_EQ(std::memcmp(&given.known, &expected, sizeof(T)), 0);
        for (const std::uint8_t b : given.tail) {
            EXPECT_EQ(b, 0x5A) << "unknown fields must stay unchanged";
        }
    }
    for (std::size_t size = oldest; size < sizeof(T); size += 4) {
        ASSERT_TRUE(ok(with_size(size)));
        EXPECT_EQ(given.known.struct_size, size);
        const std::uint8_t* const got = reinterpret_cast<const std::uint8_t*>(&given);
        EXPECT_EQ(std::memcmp(got + 4, reinterpret_cast<const std::uint8_t*>(&expected) + 4, size - 4), 0);
        EXPECT_TRUE(std::all_of(got + size, got + sizeof given, [](std::uint8_t b) { return b == 0x5A; }))
            << "an older header: nothing is written past " << size;
    }
    for (const std::size_t size : {std::size_t{0}, std::size_t{4}, oldest - 1, std::size_t{UINT32_MAX}}) {
        EXPECT_TRUE(refuses(bad, "struct_size", [&] { return with_size(size); }));
        for (std::size_t i = sizeof(std::uint32_t); i < sizeof given; ++i) {
            EXPECT_EQ(reinterpret_cast<const std::uint8_t*>(&given)[i], 0x5A) << "byte " << i;
        }
    }
}

/// Sets each reserved field alone; `call` as in check_sizes.
template <class T, class Call>
void check_reserved(const T& good, Call call) {
    for (std::size_t i = 0; i < sizeof good.reserved / sizeof good.reserved[0]; ++i) {
        T given = good;
        given.reserved[i] = 1;
        EXPECT_TRUE(refuses(bad, "reserved[" + std::to_string(i) + "]", [&] { return call(&given); }));
    }
}

}  // namespace support

#endif  // MNNKV_TESTS_STRUCT_SIZES_HPP
