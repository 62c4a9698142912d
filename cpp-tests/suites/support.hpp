// Shared by all suites: files, random numbers, buffers with canaries, a small JSON reader, comparison of bytes, and
// checks of statuses and error texts.

#ifndef MNNKV_TESTS_SUPPORT_HPP
#define MNNKV_TESTS_SUPPORT_HPP

#include <mnnkv.hpp>
#ifdef MNNKV_TESTS_OF_MODEL
#include <mnnkv/model.h>
#endif
#ifdef MNNKV_TESTS_OF_LLAMA
#include <mnnkv/llama.h>
#endif

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <utility>
#include <vector>

/// Dice of this seed, which every failure below this line prints.
#define SEEDED_DICE(name, seed)    \
    SCOPED_TRACE("seed " #seed);   \
    support::dice name(seed)

namespace support {

using bytes = std::vector<std::uint8_t>;

/// A file of the test data. A missing file is a failure of the test, never an empty input.
inline bytes read_file(const std::string& name) {
    std::ifstream file(std::string(MNNKV_TESTDATA_DIR) + "/" + name, std::ios::binary);
    bytes contents((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    EXPECT_TRUE(file.good() && !contents.empty()) << "cannot read " << name;
    return contents;
}

inline std::string read_text(const std::string& name) {
    const bytes contents = read_file(name);
    return std::string(contents.begin(), contents.end());
}

/// A path of this process in the folder of temporary files: CTest runs the suites several times at once.
inline std::string temp_path(const std::string& name) {
    static const unsigned process = std::random_device()();
    return testing::TempDir() + "mnnkv-" + std::to_string(process) + "-" + name;
}

/// Random numbers that are the same everywhere: the engine is standardised, the distributions are not.
class dice {
public:
    explicit dice(std::uint32_t seed) : engine_(seed) {}

    std::uint32_t bits() { return static_cast<std::uint32_t>(engine_()); }
    /// 0 .. n - 1
    std::uint32_t below(std::uint32_t n) { return bits() % n; }
    /// low .. high, both included
    std::uint32_t between(std::uint32_t low, std::uint32_t high) { return low + below(high - low + 1); }
    bool one_in(std::uint32_t n) { return below(n) == 0; }
    std::uint8_t byte() { return static_cast<std::uint8_t>(bits() >> 24); }
    /// 0 .. 1
    float unit() { return static_cast<float>(bits() >> 8) / 16777216.0f; }

    bytes noise(std::size_t size) {
        bytes out(size);
        for (std::size_t at = 0; at < size; at += 4) {
            const std::uint32_t four = bits();
            std::memcpy(&out[at], &four, std::min<std::size_t>(4, size - at));
        }
        return out;
    }

private:
    std::mt19937 engine_;
};

/// Two byte strings are equal; the message names the first difference.
inline testing::AssertionResult same(const std::uint8_t* a, std::size_t a_size, const std::uint8_t* b,
                                     std::size_t b_size) {
    if (a_size != b_size) {
        return testing::AssertionFailure() << a_size << " bytes against " << b_size;
    }
    if (a_size == 0 || std::memcmp(a, b, a_size) == 0) {
        return testing::AssertionSuccess() << "equal bytes";
    }
    std::size_t at = 0;
    while (a[at] == b[at]) {
        ++at;
    }
    return testing::AssertionFailure() << "byte " << at << " of " << a_size << " is " << int(a[at]) << " against "
                                       << int(b[at]);
}

inline testing::AssertionResult same(const bytes& a, const bytes& b) {
    return same(a.data(), a.size(), b.data(), b.size());
}

/// A buffer between two rows of canaries. With a skew it begins at an odd address: byte buffers need no alignment.
class guarded {
public:
    explicit guarded(bytes contents, std::size_t skew = 0)
        : begin_(fence + skew), made_(std::move(contents)), all_(begin_ + made_.size() + fence) {
        for (std::size_t i = 0; i < begin_; ++i) {
            all_[i] = canary(i);
        }
        for (std::size_t i = end(); i < all_.size(); ++i) {
            all_[i] = canary(i);
        }
        std::copy(made_.begin(), made_.end(), all_.begin() + static_cast<std::ptrdiff_t>(begin_));
    }

    /// An output buffer: canaries all through.
    explicit guarded(std::size_t size, std::size_t skew = 0) : guarded(bytes(size, 0xC7), skew) {}

    std::uint8_t* data() { return all_.data() + begin_; }
    const std::uint8_t* data() const { return all_.data() + begin_; }
    std::size_t size() const { return made_.size(); }
    bytes contents() const { return bytes(data(), data() + size()); }

    /// Exactly these bytes, and no canary gone.
    testing::AssertionResult holds(const bytes& expected) const {
        for (std::size_t i = 0; i < begin_; ++i) {
            if (all_[i] != canary(i)) {
                return testing::AssertionFailure() << "a byte " << begin_ - i << " before the buffer was written";
            }
        }
        for (std::size_t i = end(); i < all_.size(); ++i) {
            if (all_[i] != canary(i)) {
                return testing::AssertionFailure() << "byte " << i - end() << " after the buffer was written";
            }
        }
        return same(data(), size(), expected.data(), expected.size());
    }

    /// Unchanged.
    testing::AssertionResult untouched() const { return holds(made_); }

private:
    static constexpr std::size_t fence = 128;
    std::size_t end() const { return begin_ + made_.size(); }
    static std::uint8_t canary(std::size_t i) { return static_cast<std::uint8_t>(0xA5 ^ (i * 7)); }

    std::size_t begin_;
    bytes made_;
    bytes all_;
};

/// The text of the last failure of the library under test, and a failure to be one before.
#ifdef MNNKV_TESTS_OF_MODEL
inline const char* last_error() { return mnnkv_model_last_error(); }
inline void fail_first() { mnnkv_sizing_create(nullptr, 0, 0xBAD, nullptr); }
#elif defined(MNNKV_TESTS_OF_LLAMA)
inline const char* last_error() { return mnnkv_llama_last_error(); }
inline void fail_first() {
    std::size_t size = 0;
    mnnkv_state_decoded_size("?", 1, &size);
}
#else
inline const char* last_error() { return mnnkv_last_error(); }
inline void fail_first() {
    mnnkv_session_options other_abi = mnnkv::make<mnnkv_session_options>();
    other_abi.abi_version = 0xBAD;
    mnnkv_session_create(&other_abi, nullptr);
}
#endif

/// A status is the expected one; the message has the library's error text.
inline testing::AssertionResult answers(mnnkv_status got, mnnkv_status expected) {
    if (got == expected) {
        return testing::AssertionSuccess() << mnnkv_status_name(got);
    }
    return testing::AssertionFailure() << mnnkv_status_name(got) << " instead of " << mnnkv_status_name(expected)
                                       << "; last error: " << last_error();
}

inline testing::AssertionResult ok(mnnkv_status got) { return answers(got, MNNKV_OK); }

/// A call fails with this status, and the last error then names `word`. Another failure comes first, so that an old
/// text does not pass.
template <class Call>
testing::AssertionResult refuses(mnnkv_status expected, const std::string& word, Call call) {
    fail_first();
    const std::string before = last_error();
    const mnnkv_status got = call();
    if (got != expected) {
        return answers(got, expected);
    }
    const std::string text = last_error();
    if (text.empty() || text == before) {
        return testing::AssertionFailure() << "the failure left no text; it is still: " << text;
    }
    if (text.find(word) == std::string::npos) {
        return testing::AssertionFailure() << "the text does not name " << word << ": " << text;
    }
    return testing::AssertionSuccess() << text;
}

/// A plan to be filled in.
inline mnnkv_h2o_plan empty_plan() { return mnnkv::make<mnnkv_h2o_plan>(); }

/// A JSON value; as much of JSON as the test data uses (no escapes in strings).
struct json {
    enum class kind { null, boolean, number, text, list, object };

    kind is = kind::null;
    bool truth = false;
    double number = 0;
    std::string text;
    std::vector<json> items;
    std::vector<std::pair<std::string, json>> fields;

    const json& operator[](const char* name) const {
        for (const auto& field : fields) {
            if (field.first == name) {
                return field.second;
            }
        }
        ADD_FAILURE() << "no field " << name;
        static const json nothing;
        return nothing;
    }

    std::uint32_t u32() const { return static_cast<std::uint32_t>(number); }
    float f32() const { return static_cast<float>(number); }
};

/// Reads one JSON value. Malformed text is a failure of the test.
class json_reader {
public:
    explicit json_reader(const std::string& text) : at_(text.c_str()), end_(at_ + text.size()) {}

    json read() {
        json value = any();
        skip_blanks();
        EXPECT_TRUE(at_ == end_ && sound_) << "malformed JSON before: " << std::string(at_).substr(0, 40);
        return value;
    }

private:
    void skip_blanks() {
        while (at_ < end_ && std::strchr(" \t\r\n", *at_) != nullptr) {
            ++at_;
        }
    }

    bool take(char c) {
        skip_blanks();
        const bool found = at_ < end_ && *at_ == c;
        at_ += found ? 1 : 0;
        return found;
    }

    bool take_word(const char* word) {
        const std::size_t length = std::strlen(word);
        const bool found = std::strncmp(at_, word, length) == 0;
        at_ += found ? length : 0;
        return found;
    }

    std::string quoted() {
        const char* const start = at_;
        while (at_ < end_ && *at_ != '"') {
            ++at_;
        }
        const std::string text(start, at_);
        sound_ = sound_ && take('"');
        return text;
    }

    json any() {
        json value;
        if (take('{')) {
            value.is = json::kind::object;
            for (bool more = !take('}'); more && sound_; more = take(',')) {
                sound_ = take('"');
                std::string name = quoted();
                sound_ = sound_ && take(':');
                value.fields.emplace_back(std::move(name), any());
            }
            sound_ = sound_ && (value.fields.empty() || take('}'));
        } else if (take('[')) {
            value.is = json::kind::list;
            for (bool more = !take(']'); more && sound_; more = take(',')) {
                value.items.push_back(any());
            }
            sound_ = sound_ && (value.items.empty() || take(']'));
        } else if (take('"')) {
            value.is = json::kind::text;
            value.text = quoted();
        } else if (take_word("true")) {
            value.is = json::kind::boolean;
            value.truth = true;
        } else if (take_word("false")) {
            value.is = json::kind::boolean;
        } else if (!take_word("null")) {
            value.is = json::kind::number;
            char* after = nullptr;
            value.number = std::strtod(at_, &after);
            sound_ = sound_ && after != at_;
            at_ = after;
        }
        return value;
    }

    const char* at_;
    const char* end_;
    bool sound_ = true;
};

}  // namespace support

#endif  // MNNKV_TESTS_SUPPORT_HPP
