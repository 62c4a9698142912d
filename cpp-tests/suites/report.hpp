// The report of a session as numbers.

#ifndef MNNKV_TESTS_REPORT_HPP
#define MNNKV_TESTS_REPORT_HPP

#include "support.hpp"

#include "mnnkv_json.hpp"

#include <limits>
#include <string>
#include <vector>

namespace support {

/// What mnnkv_session_report has written. Numbers that were not measured are NaN.
class session_report {
public:
    explicit session_report(std::string written) : text_(std::move(written)), memory_(mnnkv_host::json_member(text_, "memory")) {}

    const std::string& text() const { return text_; }
    bool has(const std::string& name) const { return !mnnkv_host::json_member(text_, name).empty(); }
    double number(const std::string& name) const { return number_of(text_, name); }
    double memory(const std::string& name) const { return number_of(memory_, name); }
    std::string does() const { return text_of(mnnkv_host::json_member(text_, "does")); }

    /// "raw", "k8v4", "k4v4", "file" or "dropping"; "" without a budget.
    std::string state() const { return memory_.empty() ? "" : text_of(mnnkv_host::json_member(memory_, "state")); }

    double layer(std::uint32_t number, const std::string& name) const {
        for (const std::string& layer : mnnkv_host::json_items(mnnkv_host::json_member(text_, "layers"))) {
            if (number_of(layer, "layer") == number) {
                return number_of(layer, name);
            }
        }
        return std::numeric_limits<double>::quiet_NaN();
    }

    /// One line each.
    std::string warnings() const {
        std::string lines;
        for (const std::string& item : mnnkv_host::json_items(mnnkv_host::json_member(text_, "warnings"))) {
            lines += (lines.empty() ? "" : "\n") + text_of(item);
        }
        return lines;
    }

private:
    static double number_of(const std::string& object, const std::string& name) {
        return mnnkv_host::json_number_of(object, name, std::numeric_limits<double>::quiet_NaN());
    }

    static std::string text_of(const std::string& value) {
        std::string text;
        EXPECT_TRUE(mnnkv_host::json_text(value, text)) << value;
        return text;
    }

    std::string text_, memory_;
};

inline session_report report_of(const mnnkv::session& session) {
    std::string text;
    EXPECT_TRUE(ok(session.report(text).code()));
    return session_report(text);
}

}  // namespace support

#endif  // MNNKV_TESTS_REPORT_HPP
