// Numbers in the texts of the adapter for MNN: its config, its commands, its results.

#include "../suites/support.hpp"
#include "mnnkv_json.hpp"
#include "mnnkv_mnn_api.hpp"
#include "stub_host.hpp"

#include <clocale>
#include <locale>
#include <string>
#include <utility>

namespace {

/// Numbers with a comma, in streams, and in printf where the machine has such a locale.
class comma_locale {
public:
    comma_locale() : before_(std::locale::global(std::locale(std::locale(), new comma))) {
        for (const char* name : {"de_DE.UTF-8", "de_DE.utf8", "fr_FR.UTF-8", "fr_FR.utf8"}) {
            if (std::setlocale(LC_NUMERIC, name) != nullptr) {
                break;
            }
        }
    }
    ~comma_locale() {
        std::locale::global(before_);
        std::setlocale(LC_NUMERIC, "C");
    }

private:
    struct comma : std::numpunct<char> {
        char do_decimal_point() const override { return ','; }
        char do_thousands_sep() const override { return '.'; }
        std::string do_grouping() const override { return "\3"; }
    };
    const std::locale before_;
};

TEST(MnnJson, ReadsAndWritesNumbersAsJsonHasThemInAnyLocale) {
    struct {
        std::string last;
        bool set_config(const std::string& content) { return last = content, true; }
    } llm;
    const auto checked = [&llm] {
        double number = 7;
        const std::pair<const char*, double> numbers[] = {
            {"0", 0}, {"0.5", 0.5}, {"5e-1", 0.5}, {"1E+2", 100}, {"1000000000", 1e9}, {"1234.5", 1234.5}};
        for (const auto& each : numbers) {
            EXPECT_TRUE(mnnkv_host::json_number(each.first, number) && number == each.second) << each.first;
        }
        for (const char* text : {"", "-1", "+1", "0,5", "0x10", "nan", "inf", "1e10", "1e999", "1 2", "1.5.2", "1e", "5x",
                                 "\"5\""}) {
            number = 7;
            EXPECT_FALSE(mnnkv_host::json_number(text, number)) << text;
            EXPECT_EQ(number, 7) << text;
        }
        EXPECT_EQ(mnnkv_host::json_number_text(1234.25, 17), "1234.25");
        EXPECT_EQ(mnn_stub::bench_value(R"({"h2o_lossy_ratio":2.5,"other":1})", "h2o_lossy_ratio"), "2.5");
        EXPECT_TRUE(mnnkv_mnn::trim(llm, 1234.5));
        EXPECT_EQ(llm.last, R"({"kv_trim_mb": 1234.5})");
    };
    checked();
    const comma_locale other;
    checked();
}

}  // namespace
