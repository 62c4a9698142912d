// Tables of demo and benchmarks.

#ifndef MNNKV_DEMO_TABLE_HPP
#define MNNKV_DEMO_TABLE_HPP

#include <mnnkv.hpp>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

namespace demo {

/// A number in the given format; empty where nothing was measured.
inline std::string number(const char* form, double value) {
    char text[64] = "";
    if (!std::isnan(value)) {
        std::snprintf(text, sizeof text, form, value);
    }
    return text;
}

/// A table of Markdown under the heading `## NAME: CONDITIONS`, which `make benchmarks` copies into documents.
class Table {
public:
    using Row = std::vector<std::string>;

    /// `conditions`: those that figures depend on, beside the kernels.
    Table(const std::string& name, const std::string& conditions, const Row& headers)
        : heading_("## " + name + ": " + mnnkv_cpu_level() + " kernels, " + conditions), rows_(1, headers) {}

    void row(const Row& cells) { rows_.push_back(cells); }

    /// Columns are as wide as their longest cell.
    void print() const {
        std::vector<int> widths(rows_[0].size(), 3);
        for (const Row& row : rows_) {
            for (std::size_t c = 0; c < row.size(); ++c) {
                widths[c] = std::max(widths[c], static_cast<int>(row[c].size()));
            }
        }
        std::printf("\n%s\n\n", heading_.c_str());
        for (std::size_t i = 0; i < rows_.size(); ++i) {
            for (std::size_t c = 0; c < rows_[i].size(); ++c) {
                std::printf(c == 0 ? "| %-*s " : "| %*s ", widths[c], rows_[i][c].c_str());
            }
            std::printf("|\n");
            for (std::size_t c = 0; i == 0 && c < widths.size(); ++c) {
                const std::size_t dashes = static_cast<std::size_t>(widths[c]) + 1;
                std::printf("|%s%c", std::string(dashes, '-').c_str(), c == 0 ? '-' : ':');
            }
            std::printf("%s", i == 0 ? "|\n" : "");
        }
        std::fflush(stdout);
    }

private:
    std::string heading_;
    std::vector<Row> rows_;
};

}  // namespace demo

#endif
