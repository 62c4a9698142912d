// mnn-kv inside Alibaba MNN: what the mask of a step says of its layer. Included by kv_plugin.hpp.
//
// Which layers of a model have a sliding window is nowhere in MNN's run-time config. attention_type "mix" makes two masks, each of
// the whole chat, and the graph wires one of them to each layer (llm.cpp, gen_attention_mask): a row sees its own token and those
// before it, or only the newest `sliding_window` of these.

#ifndef KV_PLUGIN_MASK_HPP
#define KV_PLUGIN_MASK_HPP

#include <cstddef>
#include <cstdint>

#include "mnnkv_half.hpp"

namespace kv_plugin {

/// The mask of a step: [row][token], numbers that are added to logits.
class step_mask {
public:
    /// What it shows of the tokens before a row.
    enum form {
        /// Neither of the two: a tree of drafts, for instance.
        other,
        /// All tokens; a chat that is no longer than the window does not tell.
        untold,
        all,
        windowed
    };

    /// bytes: 4 or 2 of a number. columns: the tokens of the chat and of rows that fill a batch. before: tokens before the step.
    step_mask(const void* numbers, std::size_t bytes, std::size_t columns, std::size_t before)
        : numbers_(numbers), bytes_(bytes), columns_(columns), before_(before) {}

    /// Of so many rows, in a model whose windows have so many tokens. Of a prompt each row is looked at where the forms differ, of
    /// a few rows at all columns of the step.
    form read(std::size_t rows, std::size_t window) const {
        const std::size_t last = before_ + rows - 1, few = 64;
        form found = last < window ? untold : is_shown(rows - 1, last - window) ? all : windowed;
        for (std::size_t row = 0; row < rows; ++row) {
            const std::size_t own = before_ + row;
            const bool has_bound = found == windowed && own >= window;
            const std::size_t first = has_bound ? own - window + 1 : 0;
            const std::size_t from = rows <= few ? before_ : own, to = rows <= few ? before_ + rows : own + 2;
            bool fits = is_shown(row, first) && is_shown(row, own) && !(has_bound && is_shown(row, first - 1));
            for (std::size_t at = from; at < to && at < before_ + rows; ++at) {
                fits = fits && is_shown(row, at) == (at <= own && at >= first);
            }
            found = fits ? found : other;
        }
        return found;
    }

private:
    bool is_shown(std::size_t row, std::size_t at) const {
        const std::size_t place = row * columns_ + at;
        const float number = bytes_ == sizeof(float) ? static_cast<const float*>(numbers_)[place]
                                                     : mnnkv_host::float_of_half(static_cast<const std::uint16_t*>(numbers_)[place]);
        return number > -1e4f;
    }

    const void* const numbers_;
    const std::size_t bytes_, columns_, before_;
};

}  // namespace kv_plugin

#endif  // KV_PLUGIN_MASK_HPP
