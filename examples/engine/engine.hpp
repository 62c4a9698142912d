// An LLM engine: prompts in chunks, drafts with rollback, edits of the history, attention on two threads.
//
// STEP is how far it has become a host of mnn-kv, 0 to 4: docs/adopt.md. Lines of step n are in `#if STEP >= n`.
// With an empty config the engine runs as in step 0.

#ifndef ENGINE_ENGINE_HPP
#define ENGINE_ENGINE_HPP

#include "cache.hpp"

#include <thread>

namespace engine {

const std::uint32_t threads = 2, chunk = 64;

class Engine {
public:
    /// The tokens whose K and V the caches have.
    Tokens chat;
    /// The reason for the last `false`.
    std::string error;
    /// The layer in which the user cancels the next forward; for tests.
    std::uint32_t cancel_at = layers;
    /// Drafted tokens, and those that were right.
    std::uint32_t drafted = 0, accepted = 0;

    explicit Engine(const Model& model, const std::string& config = "") : model_(model), caches_(layers) {
        (void)config;
#if STEP >= 2
        // Engine::Engine. With an empty config, or one that is refused, the engine runs as before
        if (!config.empty()) {
            mnnkv_session_options options = mnnkv::make<mnnkv_session_options>();
            options.layers = layers;
            options.config_json = config.data();
            options.config_len = config.size();
            options.attends = 1;  // Engine::attention calls attend
#if STEP >= 4
            // Engine::Engine: its files are of this model alone. Of real weights a hash, and how keys are rotated
            options.fingerprint = &model.seed;
            options.fingerprint_len = sizeof model.seed;
#endif
            ok(session_.create(options));
        }
#endif
    }

    /// Reads a text after the chat.
    bool read(const Tokens& text) {
        for (std::size_t at = 0; at < text.size(); at += chunk) {
            const std::uint32_t rows = static_cast<std::uint32_t>(std::min<std::size_t>(chunk, text.size() - at));
            if (!forward(&text[at], rows)) {
                return false;
            }
            next_ = draw(rows - 1);
        }
        return true;
    }

    /// Generates tokens after the chat. With drafts, each step guesses so many tokens, and verifies them at once.
    bool answer(std::uint32_t count, std::uint32_t drafts, Tokens& out) {
        const std::size_t end = chat.size() + count;
        while (chat.size() < end) {
            Tokens step(1, next_);
            guess(std::min<std::size_t>(drafts, end - chat.size() - 1), step);
            const std::uint32_t before = static_cast<std::uint32_t>(chat.size());
            if (!forward(step.data(), static_cast<std::uint32_t>(step.size()))) {
                return false;
            }
            std::uint32_t right = 0;
            next_ = draw(0);
            while (right + 1 < step.size() && step[right + 1] == next_) {
                next_ = draw(++right);
            }
            drafted += static_cast<std::uint32_t>(step.size()) - 1;
            accepted += right;
            out.insert(out.end(), step.begin(), step.begin() + right + 1);
            if (right + 1 < step.size() && !rollback(before + right + 1)) {
                return false;
            }
        }
        return true;
    }

    /// Begins a new chat.
    void clear() {
#if STEP >= 3
        // Engine::clear
        if (session_) {
            ok(session_.reset_all());
            open_ = layers;
        }
#endif
        for (Cache& cache : caches_) {
            cache.length = 0;
        }
        chat.clear();
        places_.clear();
    }

    /// Drops all tokens of the chat from `length` on.
    bool rollback(std::uint32_t length) { return erase(length, static_cast<std::uint32_t>(places_.size()) - length); }

    /// Removes tokens from the middle of the chat; later ones keep their positions. False: only clear may follow.
    bool forget(std::uint32_t first, std::uint32_t count) { return erase(first, count); }

    /// What the model says after the last row of the last forward; for tests.
    std::vector<float> logits() const {
        std::vector<float> out(vocabulary);
        model_.logits(&x_[x_.size() - hidden], out.data());
        return out;
    }

    /// Bytes of the caches that are in memory.
    std::size_t resident() const {
        std::size_t bytes = 0;
        for (const Cache& cache : caches_) {
            bytes += cache.resident();
        }
        return bytes;
    }

    Cache& cache(std::uint32_t layer) { return caches_[layer]; }

#if STEP > 1
    /// For tests.
    mnnkv::session& session() { return session_; }
    mnnkv_status code() const { return code_; }
#endif

#if STEP >= 4
    // Engine::save: all that the chat needs to go on, in one commit. False: the last one stands
    bool save(const std::string& path) {
        Tokens state(1, next_);
        state.insert(state.end(), chat.begin(), chat.end());
        state.insert(state.end(), places_.begin(), places_.end());
        mnnkv_cache views[layers];
        for (std::uint32_t layer = 0; layer < layers; ++layer) {
            views[layer] = caches_[layer].view();
        }
        return ok(session_.put("engine", state.data(), state.size() * sizeof state[0])) &&
               ok(session_.save(path.c_str(), views, layers));
    }

    // Engine::load: in place of the chat, which stays where the file is refused
    bool load(const std::string& path) {
        std::vector<char> bytes;
        if (!ok(session_.open(path.c_str()))) {
            return false;
        }
        if (!ok(session_.get("engine", bytes))) {  // damaged
            clear();
            return false;
        }
        Tokens state(bytes.size() / sizeof(Token));
        std::memcpy(state.data(), bytes.data(), state.size() * sizeof(Token));
        next_ = state[0];
        const auto middle = state.begin() + 1 + static_cast<std::ptrdiff_t>(state.size() / 2);
        chat.assign(state.begin() + 1, middle);
        places_.assign(middle, state.end());
        for (std::uint32_t layer = 0; layer < layers; ++layer) {
            std::uint32_t logical = 0;
            caches_[layer].release();
            ok(session_.lengths(layer, logical, caches_[layer].length));
        }
        return true;
    }
#endif

private:
    /// Runs tokens after the chat. False: the chat is as before.
    bool forward(const Token* tokens, std::uint32_t rows) {
        x_.resize(std::size_t(rows) * hidden);
        for (std::uint32_t row = 0; row < rows; ++row) {
            std::copy(model_.embed(tokens[row]), model_.embed(tokens[row]) + hidden, &x_[row * hidden]);
            places_.push_back(places_.empty() ? 0 : places_.back() + 1);
        }
        for (std::uint32_t layer = 0; layer < layers; ++layer) {
            if (!attention(layer, rows)) {
#if STEP >= 2
                // Engine::forward, where a begin of the first step failed: the budget is too small. The engine runs as before
                if (session_ && chat.empty() && open_ == layers && code_ == MNNKV_INVALID_ARGUMENT) {
                    session_.reset();
                    step_ = mnnkv_step();
                    clear();
                    return forward(tokens, rows);
                }
#endif
                undo();
                return false;
            }
            for (std::uint32_t row = 0; row < rows; ++row) {
                model_.mix(layer, &attended_[row * query_heads * dims], &x_[row * hidden]);
            }
        }
        chat.insert(chat.end(), tokens, tokens + rows);
        return true;
    }

    /// A layer's step: appends K and V of the rows, and attends to its tokens. False: cancelled, or refused.
    bool attention(std::uint32_t layer, std::uint32_t rows) {
        Cache& cache = caches_[layer];
        if (!room(cache, cache.length + rows)) {
            return false;
        }
#if STEP >= 2
        // Engine::attention, before it appends: tokens leave the cache, whose length is often lower then
        mnnkv_cache view = cache.view();
        if (session_) {
            if (!ok(session_.begin(layer, view, step_))) {
                return false;
            }
            cache.length = view.kv_len;
            open_ = layer;
            view.kv_len += rows;
        }
#endif
        const std::uint32_t past = cache.length, total = past + rows;
        queries_.resize(std::size_t(rows) * query_heads * dims);
        attended_.resize(queries_.size());
        for (std::uint32_t row = 0; row < rows; ++row) {
            float k[kv_heads * dims], v[kv_heads * dims];
            // Positions are the chat's, not the cache's.
            const float position = static_cast<float>(places_[chat.size() + row]);
            model_.project(layer, &x_[row * hidden], position, &queries_[row * query_heads * dims], k, v);
            cache.append(k, v);
        }
        if (layer == cancel_at) {
            error = "cancelled";
            cancel_at = layers;
            return false;
        }
        const auto work = [&](std::uint32_t lane) {
#if STEP >= 2
            // Engine::attention, on each of its threads: a part of the step in place of heads
            if (session_ && step_.attends) {
                mnnkv_attend step = mnnkv::make<mnnkv_attend>();
                step.dtype = MNNKV_DTYPE_F32;
                step.heads = query_heads;
                step.rows = rows;
                step.head_dim = dims;
                step.queries = queries_.data();  // [rows][heads][dims], rotated
                step.output = attended_.data();
                step.causal = 1;
                failures_[lane] = session_.attend(layer, lane, threads, view, step).message();
                return;
            }
#endif
            std::vector<float>& p = lanes_[lane].p;
            p.assign(total, 0);
            for (std::uint32_t head = lane; head < kv_heads; head += threads) {
                for (std::uint32_t q = head * group; q < (head + 1) * group; ++q) {
                    for (std::uint32_t row = 0; row < rows; ++row) {
                        const std::size_t at = (std::size_t(row) * query_heads + q) * dims;
                        attend(cache.key(head), cache.value(head), &queries_[at], past + row + 1, p.data(), &attended_[at]);
                    }
                }
            }
        };
        std::thread other(work, 1);
        work(0);
        other.join();
#if STEP >= 2
        // Engine::attention, after its threads; fails where a part has failed
        if (session_) {
            if (!ok(session_.end(layer, query_heads, rows, view))) {
                for (const std::string& failure : failures_) {
                    error = failure.empty() ? error : failure;
                }
                return false;
            }
            open_ = layers;
        }
#endif
        return true;
    }

#if STEP >= 2
    // Engine::ok: keeps the reason of a failure
    bool ok(mnnkv::status status) {
        code_ = status.code();
        error = status ? error : status.message();
        return static_cast<bool>(status);
    }
#endif

    /// Room for so many tokens.
    bool room(Cache& cache, std::uint32_t tokens) {
        const bool made = cache.reserve(tokens);
        error = made ? error : "out of memory";
        return made;
    }

    /// Removes tokens of all layers; those after them move down.
    bool erase(std::uint32_t first, std::uint32_t count) {
        for (std::uint32_t layer = 0; layer < layers; ++layer) {
#if STEP >= 3
            // Engine::erase, for each layer
            if (session_) {
                if (!keep(layer, first, first + count)) {
                    return false;
                }
                continue;
            }
#endif
            // A step that failed may have left fewer tokens in this layer.
            Cache& cache = caches_[layer];
            const std::uint32_t from = std::min(first, cache.length);
            cache.erase(from, std::min(count, cache.length - from));
        }
        const auto cut = [&](std::vector<std::uint32_t>& list) {
            const std::size_t from = std::min<std::size_t>(first, list.size()), to = std::min<std::size_t>(from + count, list.size());
            list.erase(list.begin() + static_cast<std::ptrdiff_t>(from), list.begin() + static_cast<std::ptrdiff_t>(to));
        };
        cut(chat);
        cut(places_);
        return true;
    }

#if STEP >= 3
    // Engine::keep: the tokens of a layer before `first` and from `behind` on stay, wherever they are
    bool keep(std::uint32_t layer, std::uint32_t first, std::uint32_t behind) {
        Cache& cache = caches_[layer];
        std::uint32_t length = 0, in_cache = 0;
        ok(session_.lengths(layer, length, in_cache));
        first = std::min(first, length);  // a step that failed may not have reached this layer
        behind = std::min(behind, length);
        const std::int32_t pairs[] = {0, std::int32_t(first), std::int32_t(behind), std::int32_t(length - behind)};
        if (!room(cache, cache.length)) {  // a layer that was loaded has none
            return false;
        }
        mnnkv_cache view = cache.view();
        if (!ok(session_.keep(layer, pairs, 2, view))) {
            return false;
        }
        cache.length = view.kv_len;
        return true;
    }
#endif

    /// After a forward that failed in any layer: all layers are as the chat.
    void undo() {
#if STEP >= 3
        // Engine::undo: the layer whose step is open is aborted; rollback mends those that are closed
        if (open_ < layers) {
            mnnkv_cache view = caches_[open_].view();
            view.kv_len = step_.kv_len;
            ok(session_.abort(open_, view));
            caches_[open_].length = step_.kv_len;
            open_ = layers;
        }
#endif
        const std::string why = error;
        rollback(static_cast<std::uint32_t>(chat.size()));
        error = why;
    }

    /// Tokens that followed the last token when it came before.
    void guess(std::size_t count, Tokens& step) const {
        for (std::size_t i = chat.size(); i-- > 0 && count > 0;) {
            if (chat[i] == step[0] && i + 1 < chat.size()) {
                const std::size_t end = std::min(i + 1 + count, chat.size());
                step.insert(step.end(), chat.begin() + static_cast<std::ptrdiff_t>(i + 1),
                            chat.begin() + static_cast<std::ptrdiff_t>(end));
                return;
            }
        }
    }

    /// The token that the model says after a row of the last forward.
    Token draw(std::uint32_t row) const {
        const std::size_t rows = x_.size() / hidden;
        return model_.draw(&x_[row * hidden], chat.size() - rows + row + 1);
    }

    /// An attention thread's own.
    struct Lane {
        std::vector<float> p;  // softmax values of a row
    };

    const Model& model_;
    std::vector<Cache> caches_;
    std::vector<float> x_, queries_, attended_;
    /// The position of each token, those of an open step included.
    std::vector<std::uint32_t> places_;
    Lane lanes_[threads];
    Token next_ = 0;
#if STEP >= 2
    // Engine, its members
    mnnkv::session session_;
    std::uint32_t open_ = layers;              // the layer whose step is open
    mnnkv_step step_ = mnnkv_step();           // what begin has said of it
    mnnkv_status code_ = MNNKV_OK;             // of the last call
    std::string failures_[threads];            // the library's text belongs to the thread on which the call failed
#endif
};

}  // namespace engine

#endif
