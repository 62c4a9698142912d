// Calls that must fail, and outputs that they must not write.

#ifndef MNNKV_TESTS_REFUSAL_HPP
#define MNNKV_TESTS_REFUSAL_HPP

#include "support.hpp"

#include <functional>
#include <limits>

namespace support {

/// One output value, filled with canaries; struct_size is set where there is one.
template <class T>
class slot {
public:
    slot() {
        std::memset(&value_, 0x5A, sizeof value_);
        set_size(value_, 0);
    }

    T* get() { return &value_; }
    const T& value() const { return value_; }

    testing::AssertionResult untouched() const {
        const slot fresh;
        return same(reinterpret_cast<const std::uint8_t*>(&value_), sizeof value_,
                    reinterpret_cast<const std::uint8_t*>(&fresh.value_), sizeof value_);
    }

private:
    template <class U>
    static auto set_size(U& value, int) -> decltype(value.struct_size, void()) {
        value.struct_size = static_cast<std::uint32_t>(sizeof value);
    }
    static void set_size(T&, long) {}

    T value_;
};

/// A call that must fail: its status, the word that the last error must name, and the call.
struct bad_call {
    mnnkv_status expected;
    std::string word;
    std::function<mnnkv_status()> run;
};

/// Runs all calls and checks every output after each.
template <class... Outputs>
void expect_refused(const std::vector<bad_call>& calls, const Outputs&... outputs) {
    for (std::size_t i = 0; i < calls.size(); ++i) {
        SCOPED_TRACE("bad call " + std::to_string(i) + " about " + calls[i].word);
        EXPECT_TRUE(refuses(calls[i].expected, calls[i].word, calls[i].run));
        const bool left_alone[] = {true, static_cast<bool>(outputs.untouched())...};
        for (std::size_t out = 1; out < sizeof left_alone; ++out) {
            EXPECT_TRUE(left_alone[out]) << "output " << out << " was written";
        }
    }
}

constexpr mnnkv_status bad = MNNKV_INVALID_ARGUMENT;
constexpr float not_a_number = std::numeric_limits<float>::quiet_NaN();
constexpr float infinity = std::numeric_limits<float>::infinity();

/// An address that is invalid for a `T`.
template <class T>
T* misaligned(T* good) {
    return reinterpret_cast<T*>(reinterpret_cast<std::uintptr_t>(good) + 1);
}

}  // namespace support

#endif  // MNNKV_TESTS_REFUSAL_HPP
