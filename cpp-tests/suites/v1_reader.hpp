// Wire format v1 of gear blobs, read and written without the library: frames, predictors and run lengths in full, of
// ZSTD payloads only the outer structure.

#ifndef MNNKV_TESTS_V1_READER_HPP
#define MNNKV_TESTS_V1_READER_HPP

#include "support.hpp"

namespace support {
namespace v1 {

enum mode : std::uint8_t { raw = 0, delta_seq = 1, xor_seq = 2 };
enum codec : std::uint8_t { rle = 0, zstd = 1 };

struct frame {
    std::uint8_t mode, codec;
    bytes payload;
};

struct blob {
    std::uint32_t words;
    std::vector<frame> planes;
};

inline std::uint32_t u32_at(const bytes& from, std::size_t at) {
    return from[at] | from[at + 1] << 8 | from[at + 2] << 16 | static_cast<std::uint32_t>(from[at + 3]) << 24;
}

inline void push_u32(bytes& to, std::uint32_t value) {
    for (int shift = 0; shift < 32; shift += 8) {
        to.push_back(static_cast<std::uint8_t>(value >> shift));
    }
}

/// Parses a blob of `width`-byte words. Returns the defect, or "" when every header is sound.
inline std::string parse(const bytes& from, std::size_t width, blob& out) {
    if (from.size() < 4 || u32_at(from, 0) == 0) {
        return "no word count";
    }
    out = {u32_at(from, 0), {}};
    std::size_t at = 4;
    for (std::size_t plane = 0; plane < width; ++plane) {
        if (from.size() - at < 10) {
            return "no room for the header of plane " + std::to_string(plane);
        }
        const std::size_t length = u32_at(from, at + 6);
        if (from[at] > xor_seq || from[at + 1] > zstd) {
            return "unknown mode or codec in plane " + std::to_string(plane);
        }
        if (u32_at(from, at + 2) != out.words) {
            return "raw_len of plane " + std::to_string(plane) + " is not the word count";
        }
        if (from.size() - at - 10 < length) {
            return "the payload of plane " + std::to_string(plane) + " is cut off";
        }
        const auto payload = from.begin() + static_cast<std::ptrdiff_t>(at + 10);
        out.planes.push_back({from[at], from[at + 1], bytes(payload, payload + static_cast<std::ptrdiff_t>(length))});
        at += 10 + length;
    }
    return at == from.size() ? "" : "bytes after the last plane";
}

inline bytes write(const blob& in) {
    bytes out;
    push_u32(out, in.words);
    for (const frame& plane : in.planes) {
        out.push_back(plane.mode);
        out.push_back(plane.codec);
        push_u32(out, in.words);
        push_u32(out, static_cast<std::uint32_t>(plane.payload.size()));
        out.insert(out.end(), plane.payload.begin(), plane.payload.end());
    }
    return out;
}

/// Byte `plane` of every word.
inline bytes plane_of(const bytes& words, std::size_t width, std::size_t plane) {
    bytes out;
    for (std::size_t at = plane; at < words.size(); at += width) {
        out.push_back(words[at]);
    }
    return out;
}

/// The residual of a plane under a predictor.
inline bytes residual(std::uint8_t mode, const bytes& plane) {
    bytes out;
    std::uint8_t before = 0;
    for (const std::uint8_t b : plane) {
        out.push_back(static_cast<std::uint8_t>(mode == raw ? b : mode == delta_seq ? b - before : b ^ before));
        before = b;
    }
    return out;
}

/// The plane of a residual.
inline bytes undo(std::uint8_t mode, const bytes& symbols) {
    bytes out;
    std::uint8_t before = 0;
    for (const std::uint8_t s : symbols) {
        before = static_cast<std::uint8_t>(mode == raw ? s : mode == delta_seq ? before + s : before ^ s);
        out.push_back(before);
    }
    return out;
}

/// Length of the run of equal bytes at `at`, at most 131.
inline std::size_t run_at(const bytes& in, std::size_t at) {
    std::size_t length = 0;
    while (length < 131 && at + length < in.size() && in[at + length] == in[at]) {
        ++length;
    }
    return length;
}

inline bytes rle_encode(const bytes& in) {
    bytes out;
    for (std::size_t at = 0; at < in.size();) {
        const std::size_t run = run_at(in, at);
        if (run >= 4) {
            out.push_back(static_cast<std::uint8_t>(0x80 | (run - 4)));
            out.push_back(in[at]);
            at += run;
            continue;
        }
        const std::size_t start = at;
        while (at < in.size() && at - start < 128 && run_at(in, at) < 4) {
            ++at;
        }
        out.push_back(static_cast<std::uint8_t>(at - start - 1));
        for (std::size_t i = start; i < at; ++i) {
            out.push_back(in[i]);
        }
    }
    return out;
}

/// Literals alone, one by one: sound, though no encoder of the format writes it.
inline bytes rle_single_literals(const bytes& in) {
    bytes out;
    for (const std::uint8_t b : in) {
        out.push_back(0);
        out.push_back(b);
    }
    return out;
}

/// Returns true if the payload is sound and gives exactly `length` bytes.
inline bool rle_decode(const bytes& in, std::size_t length, bytes& out) {
    out.clear();
    for (std::size_t at = 0; at < in.size();) {
        const std::uint8_t control = in[at++];
        const std::size_t count = control & 0x80 ? 4u + (control & 0x7F) : 1u + control;
        const std::size_t used = control & 0x80 ? 1 : count;
        if (used > in.size() - at || count > length - out.size()) {
            return false;
        }
        for (std::size_t i = 0; i < count; ++i) {
            out.push_back(in[at + (used == 1 ? 0 : i)]);
        }
        at += used;
    }
    return out.size() == length;
}

/// Checks that the payload is one ZSTD frame from its first byte to its last (RFC 8878), and announces `length` bytes
/// or no number. Returns the defect, or "".
inline std::string zstd_shape(const bytes& in, std::size_t length) {
    if (in.size() < 6 || u32_at(in, 0) != 0xFD2FB528) {
        return "not a ZSTD frame";
    }
    const std::uint8_t descriptor = in[4];
    const bool single_segment = (descriptor & 0x20) != 0, checksum = (descriptor & 0x04) != 0;
    static const std::size_t id_sizes[] = {0, 1, 2, 4}, size_sizes[] = {0, 2, 4, 8};
    std::size_t size_bytes = size_sizes[descriptor >> 6];
    size_bytes = size_bytes == 0 && single_segment ? 1 : size_bytes;
    std::size_t at = 5 + (single_segment ? 0 : 1) + id_sizes[descriptor & 3];
    if ((descriptor & 0x08) != 0 || in.size() < at + size_bytes) {
        return "bad frame header";
    }
    std::uint64_t announced = size_bytes == 2 ? 256 : 0;
    for (std::size_t i = 0; i < size_bytes; ++i) {
        announced += static_cast<std::uint64_t>(in[at + i]) << (8 * i);
    }
    if (size_bytes > 0 && announced != length) {
        return "announces " + std::to_string(announced) + " bytes";
    }
    at += size_bytes;
    for (bool last = false; !last;) {
        if (in.size() < at + 3) {
            return "cut off before a block";
        }
        const std::uint32_t header = in[at] | in[at + 1] << 8 | static_cast<std::uint32_t>(in[at + 2]) << 16;
        const std::uint32_t type = (header >> 1) & 3;
        last = (header & 1) != 0;
        at += 3 + (type == 1 ? 1 : header >> 3);
        if (type == 3 || at > in.size()) {
            return "bad block";
        }
    }
    at += checksum ? 4 : 0;
    return at == in.size() ? "" : "bytes after the frame";
}

}  // namespace v1
}  // namespace support

#endif  // MNNKV_TESTS_V1_READER_HPP
