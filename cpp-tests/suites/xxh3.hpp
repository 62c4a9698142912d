// XXH3-64 with seed 0, for 17 bytes and more: the checksums of format v2. Written from the algorithm's specification,
// so that tests can put a correct checksum under an unsound blob.

#ifndef MNNKV_TESTS_XXH3_HPP
#define MNNKV_TESTS_XXH3_HPP

#include <cstddef>
#include <cstdint>

namespace support {
namespace xxh3 {

const std::uint8_t secret[192] = {
    0xb8, 0xfe, 0x6c, 0x39, 0x23, 0xa4, 0x4b, 0xbe, 0x7c, 0x01, 0x81, 0x2c, 0xf7, 0x21, 0xad, 0x1c,
    0xde, 0xd4, 0x6d, 0xe9, 0x83, 0x90, 0x97, 0xdb, 0x72, 0x40, 0xa4, 0xa4, 0xb7, 0xb3, 0x67, 0x1f,
    0xcb, 0x79, 0xe6, 0x4e, 0xcc, 0xc0, 0xe5, 0x78, 0x82, 0x5a, 0xd0, 0x7d, 0xcc, 0xff, 0x72, 0x21,
    0xb8, 0x08, 0x46, 0x74, 0xf7, 0x43, 0x24, 0x8e, 0xe0, 0x35, 0x90, 0xe6, 0x81, 0x3a, 0x26, 0x4c,
    0x3c, 0x28, 0x52, 0xbb, 0x91, 0xc3, 0x00, 0xcb, 0x88, 0xd0, 0x65, 0x8b, 0x1b, 0x53, 0x2e, 0xa3,
    0x71, 0x64, 0x48, 0x97, 0xa2, 0x0d, 0xf9, 0x4e, 0x38, 0x19, 0xef, 0x46, 0xa9, 0xde, 0xac, 0xd8,
    0xa8, 0xfa, 0x76, 0x3f, 0xe3, 0x9c, 0x34, 0x3f, 0xf9, 0xdc, 0xbb, 0xc7, 0xc7, 0x0b, 0x4f, 0x1d,
    0x8a, 0x51, 0xe0, 0x4b, 0xcd, 0xb4, 0x59, 0x31, 0xc8, 0x9f, 0x7e, 0xc9, 0xd9, 0x78, 0x73, 0x64,
    0xea, 0xc5, 0xac, 0x83, 0x34, 0xd3, 0xeb, 0xc3, 0xc5, 0x81, 0xa0, 0xff, 0xfa, 0x13, 0x63, 0xeb,
    0x17, 0x0d, 0xdd, 0x51, 0xb7, 0xf0, 0xda, 0x49, 0xd3, 0x16, 0x55, 0x26, 0x29, 0xd4, 0x68, 0x9e,
    0x2b, 0x16, 0xbe, 0x58, 0x7d, 0x47, 0xa1, 0xfc, 0x8f, 0xf8, 0xb8, 0xd1, 0x7a, 0xd0, 0x31, 0xce,
    0x45, 0xcb, 0x3a, 0x8f, 0x95, 0x16, 0x04, 0x28, 0xaf, 0xd7, 0xfb, 0xca, 0xbb, 0x4b, 0x40, 0x7e,
};

const std::uint64_t prime32[] = {0, 0x9E3779B1u, 0x85EBCA77u, 0xC2B2AE3Du};
const std::uint64_t prime64[] = {0, 0x9E3779B185EBCA87u, 0xC2B2AE3D27D4EB4Fu, 0x165667B19E3779F9u,
                                 0x85EBCA77C2B2AE63u, 0x27D4EB2F165667C5u};

inline std::uint64_t u64_at(const std::uint8_t* at) {
    std::uint64_t value = 0;
    for (int i = 7; i >= 0; --i) {
        value = value << 8 | at[i];
    }
    return value;
}

/// The exclusive or of both halves of the 128-bit product.
inline std::uint64_t folded_product(std::uint64_t a, std::uint64_t b) {
    const std::uint64_t low = 0xFFFFFFFFu;
    const std::uint64_t ll = (a & low) * (b & low), hl = (a >> 32) * (b & low);
    const std::uint64_t lh = (a & low) * (b >> 32), hh = (a >> 32) * (b >> 32);
    const std::uint64_t cross = (ll >> 32) + (hl & low) + lh;
    return ((cross << 32) | (ll & low)) ^ (hh + (hl >> 32) + (cross >> 32));
}

inline std::uint64_t mix(const std::uint8_t* at, std::size_t key) {
    return folded_product(u64_at(at) ^ u64_at(secret + key), u64_at(at + 8) ^ u64_at(secret + key + 8));
}

inline std::uint64_t avalanche(std::uint64_t h) {
    h = (h ^ h >> 37) * 0x165667919E3779F9u;
    return h ^ h >> 32;
}

inline void accumulate(std::uint64_t (&sums)[8], const std::uint8_t* at, std::size_t key) {
    for (std::size_t i = 0; i < 8; ++i) {
        const std::uint64_t value = u64_at(at + 8 * i), keyed = value ^ u64_at(secret + key + 8 * i);
        sums[i ^ 1] += value;
        sums[i] += (keyed & 0xFFFFFFFFu) * (keyed >> 32);
    }
}

inline std::uint64_t of_many(const std::uint8_t* at, std::size_t size) {
    std::uint64_t sums[8] = {prime32[3], prime64[1], prime64[2], prime64[3],
                             prime64[4], prime32[2], prime64[5], prime32[1]};
    const std::size_t blocks = (size - 1) / 1024;
    for (std::size_t block = 0; block < blocks; ++block) {
        for (std::size_t stripe = 0; stripe < 16; ++stripe) {
            accumulate(sums, at + 1024 * block + 64 * stripe, 8 * stripe);
        }
        for (std::size_t i = 0; i < 8; ++i) {
            sums[i] = (sums[i] ^ sums[i] >> 47 ^ u64_at(secret + 128 + 8 * i)) * prime32[1];
        }
    }
    for (std::size_t stripe = 0; stripe < (size - 1 - 1024 * blocks) / 64; ++stripe) {
        accumulate(sums, at + 1024 * blocks + 64 * stripe, 8 * stripe);
    }
    accumulate(sums, at + size - 64, 121);
    std::uint64_t result = size * prime64[1];
    for (std::size_t i = 0; i < 4; ++i) {
        result += folded_product(sums[2 * i] ^ u64_at(secret + 11 + 16 * i),
                                 sums[2 * i + 1] ^ u64_at(secret + 19 + 16 * i));
    }
    return avalanche(result);
}

inline std::uint64_t digest(const std::uint8_t* at, std::size_t size) {
    if (size > 240) {
        return of_many(at, size);
    }
    std::uint64_t sum = size * prime64[1];
    if (size > 128) {
        for (std::size_t i = 0; i < 8; ++i) {
            sum += mix(at + 16 * i, 16 * i);
        }
        sum = avalanche(sum);
        for (std::size_t i = 8; i < size / 16; ++i) {
            sum += mix(at + 16 * i, 16 * (i - 8) + 3);
        }
        return avalanche(sum + mix(at + size - 16, 119));
    }
    for (std::size_t i = 0; i == 0 || 32 * i < size; ++i) {
        sum += mix(at + 16 * i, 32 * i) + mix(at + size - 16 * (i + 1), 32 * i + 16);
    }
    return avalanche(sum);
}

}  // namespace xxh3
}  // namespace support

#endif  // MNNKV_TESTS_XXH3_HPP
