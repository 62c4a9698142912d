// An LLM engine: prompts in chunks, drafts with rollback, edits of the history, attention on two threads.
//
// STEP is how far it has become a host of mnn-kv, 0 to 9: docs/adopt.md. Lines of step n are in `#if STEP >= n`.
// With an empty config the engine runs as in step 0.

#ifndef ENGINE_ENGINE_HPP
#define ENGINE_ENGINE_HPP

#include "cache.hpp"

#include <cstdio>
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
        // Engine::Engine. With an empty config, or one that is refused, the engine runs as before.
        if (!config.empty()) {
            mnnkv_session_options options = mnnkv::make<mnnkv_session_options>();
            options.layers = layers;
            options.lanes = options.host_threads = threads;
            options.config_json = config.data();
            options.config_len = config.size();
            options.attends = 1;  // Engine::attention calls attend where the config has kv_quant
#if STEP >= 4
            // Engine::Engine, before it creates the session
            options.restores_heads = 1;
#endif
            ok(session_.create(options));
        }
#endif
#if STEP >= 5
        // Engine::Engine, with a session
        if (session_) {
            mnnkv_rotation rotation = mnnkv::make<mnnkv_rotation>();
            rotation.pairing = 1;  // channel i turns with i + dims / 2
            rotation.dims = dims;
            rotation.theta = rope_theta;
            ok(session_.rotation(MNNKV_ALL_LAYERS, &rotation));
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
        for (auto& places : places_) {
            places.clear();
        }
        if (session_) {
            ok(session_.reset_all());
            open_ = layers;
        }
#endif
        for (Cache& cache : caches_) {
            cache.length = 0;
        }
        chat.clear();
    }

    /// Drops all tokens of the chat from `length` on.
    bool rollback(std::uint32_t length) {
        for (std::uint32_t layer = 0; layer < layers; ++layer) {
#if STEP >= 3
            // Engine::rollback, for each layer
            if (session_) {
                if (!keep(layer, 0, length, 0, 0)) {
                    return false;
                }
                places_[layer].resize(length);
                continue;
            }
#endif
            caches_[layer].length = length;
        }
        chat.resize(length);
        return true;
    }

    /// Removes tokens from the middle of the chat; later ones get new positions. False: only clear may follow.
    bool forget(std::uint32_t first, std::uint32_t count) {
        for (std::uint32_t layer = 0; layer < layers; ++layer) {
            Cache& cache = caches_[layer];
#if STEP >= 3
            // Engine::forget, for each layer
            if (session_) {
                const std::uint32_t behind = first + count, length = static_cast<std::uint32_t>(chat.size());
                if (!keep(layer, 0, first, behind, length - behind) || !shift(layer, first, count)) {
                    return false;
                }
                continue;
            }
#endif
            cache.erase(first, count);
            cache.shift(first, cache.length - first, -static_cast<float>(count));
        }
        chat.erase(chat.begin() + first, chat.begin() + first + count);
        return true;
    }

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

#if STEP >= 2
    // Engine, for its tests
    mnnkv::session& session() { return session_; }
    mnnkv_status code() const { return code_; }
#endif

#if STEP >= 3
    // Engine::positions: where the tokens of a cache are in the chat, as (offset, length) in the order of the cache
    std::vector<std::int32_t> positions(std::uint32_t layer) {
        std::vector<std::int32_t> pairs;
        std::size_t n = 0;
        (void)session_.positions(layer, nullptr, 0, n);
        pairs.resize(2 * n);
        ok(session_.positions(layer, pairs.data(), n, n));
        return pairs;
    }
#endif

#if STEP >= 5
    // Engine::pin: tokens that no eviction removes
    bool pin(std::uint32_t first, std::uint32_t count) { return ok(session_.pin(first, count)); }
#endif

#if STEP >= 7
    // Engine::park: while the user thinks
    bool park() {
        for (std::uint32_t layer = 0; layer < layers; ++layer) {
            mnnkv_cache view = caches_[layer].view();
            if (view.layout == nullptr) {
                continue;  // there is nothing to park, or it is parked
            }
            if (!ok(session_.park(layer, nullptr, view))) {
                return false;
            }
            caches_[layer].release();  // reserve takes memory again before the next begin
        }
        return true;
    }
#endif

#if STEP >= 8
    // Engine::chat_file: a file that only this model opens
    mnnkv_snapshot_options chat_file(const char* path) const {
        mnnkv_snapshot_options options = mnnkv::make<mnnkv_snapshot_options>();
        options.path = path;
        options.fingerprint = &model_.seed;  // of real weights a hash, and how keys are rotated
        options.fingerprint_len = sizeof model_.seed;
        options.access = MNNKV_SNAPSHOT_APPEND;
        return options;
    }

    // Engine::save: all that the chat needs to go on
    bool save(mnnkv::snapshot& file) {
        for (std::uint32_t layer = 0; layer < layers; ++layer) {
            mnnkv_cache view = caches_[layer].view();
            if (!ok(file.append(session_, layer, nullptr, view))) {
                (void)mnnkv_snapshot_discard(file.get());
                return false;
            }
        }
        Tokens tokens = chat;
        tokens.push_back(next_);
        std::vector<std::uint32_t> places;
        for (const auto& of_layer : places_) {
            places.insert(places.end(), of_layer.begin(), of_layer.end());
        }
        if (!ok(file.put("tokens", tokens.data(), tokens.size() * sizeof(Token))) ||
            !ok(file.put("places", places.data(), places.size() * sizeof places[0])) || !ok(file.commit())) {
            (void)mnnkv_snapshot_discard(file.get());
            return false;
        }
        return true;
    }

    // Engine::load: in place of the chat. False: the chat is as before
    bool load(const mnnkv::snapshot& file) {
        std::vector<char> bytes, places;
        if (!ok(file.section("tokens", bytes)) || !ok(file.section("places", places))) {
            return false;
        }
        const std::size_t count = bytes.size() / sizeof(Token), row = (count - 1) * sizeof places_[0][0];
        if (count == 0 || places.size() != layers * row) {
            error = "the file is not one of this engine";
            return false;
        }
        Tokens tokens(count);
        std::memcpy(tokens.data(), bytes.data(), tokens.size() * sizeof(Token));
        const Token next = tokens.back();
        tokens.pop_back();
        if (!ok(file.load(session_))) {
#if STEP >= 9
            // Engine::load, where layers are damaged
            if (is_lost()) {
                chat.swap(tokens);
                next_ = next;
                return read_again();
            }
#endif
            return false;  // no layer has changed
        }
        chat.swap(tokens);
        next_ = next;
        for (std::uint32_t layer = 0; layer < layers; ++layer) {
            std::uint32_t logical = 0;
            caches_[layer].release();
            ok(session_.lengths(layer, logical, caches_[layer].length));
            places_[layer].resize(chat.size());
            std::memcpy(places_[layer].data(), places.data() + layer * row, row);
        }
        return true;
    }
#endif

#if STEP >= 9
    // Engine::metrics: for a log, once per turn
    std::string metrics() {
        std::string text, warnings;
        ok(session_.metrics_json(text));
        ok(session_.warnings(warnings));
        return text + "\n" + warnings;
    }
#endif

private:
    /// Runs tokens after the chat. False: the chat is as before.
    bool forward(const Token* tokens, std::uint32_t rows) {
        x_.resize(std::size_t(rows) * hidden);
        for (std::uint32_t row = 0; row < rows; ++row) {
            std::copy(model_.embed(tokens[row]), model_.embed(tokens[row]) + hidden, &x_[row * hidden]);
        }
        for (std::uint32_t layer = 0; layer < layers; ++layer) {
            if (!attention(layer, rows)) {
#if STEP >= 2
                // Engine::forward, where a layer failed: a budget too small for the model. The engine runs as before
                if (session_ && chat.empty() && code_ == MNNKV_INVALID_ARGUMENT) {
                    session_.reset();
                    open_ = layers;
                    clear();
                    return forward(tokens, rows);
                }
#endif
#if STEP >= 9
                // Engine::forward, where a layer failed
                if (is_lost()) {
                    return read_again() && forward(tokens, rows);
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
        if (!cache.reserve(cache.length + rows)) {
            error = "out of memory";
            return false;
        }
#if STEP >= 2
        // Engine::attention, before it appends
        mnnkv_cache view = cache.view();
        if (session_ && !begin(layer, view)) {
            return false;
        }
#endif
        const std::uint32_t past = cache.length, total = past + rows;
        queries_.resize(std::size_t(rows) * query_heads * dims);
        attended_.resize(queries_.size());
        for (std::uint32_t row = 0; row < rows; ++row) {
            float k[kv_heads * dims], v[kv_heads * dims];
            float position = static_cast<float>(chat.size() + row);  // in the chat, not in the cache
#if STEP >= 3
            // Engine::attention, after the position of a row
            if (session_) {
                std::vector<std::uint32_t>& places = places_[layer];  // undo takes those of a failed step away
                places.push_back(places.empty() ? 0 : places.back() + 1);
                position = static_cast<float>(places.back());
            }
#endif
            model_.project(layer, &x_[row * hidden], position, &queries_[row * query_heads * dims], k, v);
            cache.append(k, v);
        }
        if (layer == cancel_at) {
            error = "cancelled";
            cancel_at = layers;
            return false;
        }
#if STEP >= 2
        // Engine::attention, after its appends
        view.kv_len = cache.length;
#endif
#if STEP >= 6
        // Engine::attention, before its threads
        std::uint32_t scored = 0, block_tokens = 0;
        if (session_) {
            ok(session_.scored_rows(layer, rows, scored, block_tokens));
        }
#endif
        const auto work = [&](std::uint32_t lane) {
#if STEP >= 2
            // Engine::attention, on each of its threads: a part of the step in place of heads
            if (session_ && session_.attends(layer)) {
                mnnkv_attend step = mnnkv::make<mnnkv_attend>();
                step.dtype = MNNKV_DTYPE_F32;
                step.heads = query_heads;
                step.rows = rows;
                step.head_dim = dims;
                step.queries = queries_.data();  // [rows][heads][dims], rotated
                step.output = attended_.data();
                step.causal = 1;
                ok(session_.attend(layer, lane, threads, view, step), lane);
                return;
            }
#endif
            std::vector<float>& p = lanes_[lane].p;
            p.assign(std::size_t(rows) * total, 0);
            for (std::uint32_t head = lane; head < kv_heads; head += threads) {
                const Word *key = cache.key(head), *value = cache.value(head);
#if STEP >= 4
                // Engine::attention, on its threads, for each KV head
                const void *k = key, *v = value;
                if (session_ && !ok(session_.head(layer, lane, head, view, k, v), lane)) {
                    return;
                }
                key = static_cast<const Word*>(k);
                value = static_cast<const Word*>(v);
#endif
                for (std::uint32_t q = head * group; q < (head + 1) * group; ++q) {
                    for (std::uint32_t row = 0; row < rows; ++row) {
                        const std::size_t at = (std::size_t(row) * query_heads + q) * dims;
                        attend(key, value, &queries_[at], past + row + 1, &p[std::size_t(row) * total], &attended_[at]);
                    }
#if STEP >= 6
                    // Engine::attention, after each query head: p is [rows][total], 0 where masked
                    if (scored > 0) {
                        mnnkv_score_tile tile = mnnkv::make<mnnkv_score_tile>();
                        tile.dtype = MNNKV_DTYPE_F32;
                        tile.queries = rows;
                        tile.tokens = total;
                        tile.flags = MNNKV_TILE_FIRST | MNNKV_TILE_LAST;
                        tile.data = p.data();
                        mnnkv_block_sums sums = mnnkv::make<mnnkv_block_sums>();
                        sums.flags = tile.flags;
                        sums.heads = 1;
                        sums.rows = scored;
                        sums.block_tokens = block_tokens;
                        sums.blocks = total / block_tokens + 1;
                        std::vector<double>& room = lanes_[lane].room;
                        room.resize((std::size_t(sums.blocks) + 1) * scored);
                        sums.factors = room.data();
                        sums.sums = room.data() + scored;
                        mnnkv_sum_tile(&sums, &tile);
                        if (!ok(session_.block_sums(layer, lane, sums), lane)) {
                            return;
                        }
                    }
#endif
                }
            }
        };
        std::thread other(work, 1);
        work(0);
        other.join();
#if STEP >= 2
        // Engine::attention, after its threads
        for (Lane& lane : lanes_) {
            if (!lane.error.empty()) {
                code_ = lane.code;
                error.swap(lane.error);
                lane.error.clear();
                return false;
            }
        }
#endif
#if STEP >= 2
        // Engine::attention, at its end
        if (session_ && !end(layer, rows, view)) {
            return false;
        }
#endif
        return true;
    }

#if STEP >= 2
    // Engine::begin and Engine::end: the calls around a layer's step
    bool begin(std::uint32_t layer, mnnkv_cache& view) {
        if (!ok(session_.begin(layer, view))) {
            return false;
        }
        caches_[layer].length = begun_ = view.kv_len;
        open_ = layer;
        return true;
    }

    bool end(std::uint32_t layer, std::uint32_t rows, mnnkv_cache& view) {
        if (!ok(session_.end(layer, query_heads, rows, view))) {
            return false;
        }
        open_ = layers;
        return true;
    }

    // Engine::ok: keeps the reason of a failure
    bool ok(mnnkv::status status) {
        code_ = status.code();
        if (!status) {
            error = status.message();
        }
        return static_cast<bool>(status);
    }

    // Engine::ok, on an attention thread: mnnkv_last_error is that of the thread
    bool ok(mnnkv::status status, std::uint32_t lane) {
        if (!status) {
            lanes_[lane].code = status.code();
            lanes_[lane].error = status.message();
        }
        return static_cast<bool>(status);
    }
#endif

#if STEP >= 3
    // Engine::keep: two ranges of the chat stay
    bool keep(std::uint32_t layer, std::uint32_t a, std::uint32_t a_count, std::uint32_t b, std::uint32_t b_count) {
        std::vector<std::int32_t> pairs;
        if (a_count > 0) {
            pairs.insert(pairs.end(), {std::int32_t(a), std::int32_t(a_count)});
        }
        if (b_count > 0) {
            pairs.insert(pairs.end(), {std::int32_t(b), std::int32_t(b_count)});
        }
#if STEP >= 7
        // Engine::keep: nor has a parked cache
        if (!caches_[layer].reserve(caches_[layer].length)) {
            error = "out of memory";
            return false;
        }
#endif
        // Without tokens in the cache there may be no memory yet.
        mnnkv_cache view = caches_[layer].length > 0 ? caches_[layer].view() : mnnkv::make<mnnkv_cache>();
        if (!ok(session_.keep(layer, pairs.data(), pairs.size() / 2, view))) {
            return false;
        }
        caches_[layer].length = view.kv_len;
        return true;
    }
#endif

#if STEP >= 3
    // Engine::shift: turns keys in an open step, and says which
    bool shift(std::uint32_t layer, std::uint32_t first, std::uint32_t count) {
        Cache& cache = caches_[layer];
        std::vector<std::uint32_t>& places = places_[layer];
        places.erase(places.begin() + first, places.begin() + first + count);
        if (!cache.reserve(std::max<std::uint32_t>(cache.length, 1))) {
            error = "out of memory";
            return false;
        }
        mnnkv_cache view = cache.view();
        if (!begin(layer, view)) {
            return false;
        }
        if (session_.attends(layer)) {
            return end(layer, 0, view);  // keys in 8 bits keep their rotation, so all do, and later tokens follow them
        }
        for (std::size_t i = first; i < places.size(); ++i) {
            places[i] -= count;
        }
        const std::vector<std::int32_t> runs = positions(layer);  // (position, count), slot after slot
#if STEP >= 4
        // Engine::shift, after begin: keys are written in the cache
        if (!ok(session_.restore(layer, 0, 0, kv_heads, view))) {
            return false;
        }
#endif
        std::uint32_t slot = 0;
        for (std::size_t i = 0; i < runs.size(); i += 2) {
            const std::uint32_t offset = static_cast<std::uint32_t>(runs[i]);
            const std::uint32_t length = static_cast<std::uint32_t>(runs[i + 1]);
            const std::uint32_t skip = std::min(length, offset < first ? first - offset : 0);
            cache.shift(slot + skip, length - skip, -static_cast<float>(count));
            if (!ok(session_.rewritten(layer, slot + skip, length - skip))) {
                return false;
            }
            slot += length;
        }
        return end(layer, 0, view);
    }
#endif

#if STEP >= 9
    // Engine::is_lost: failures that no repetition mends
    bool is_lost() const { return code_ == MNNKV_CORRUPT || code_ == MNNKV_INTERNAL; }

    // Engine::read_again: the chat goes on without a session; only its tokens are needed
    bool read_again() {
        const Tokens text = chat;
        const Token next = next_;
        std::fprintf(stderr, "mnn-kv is off: %s\n", error.c_str());
        session_.reset();
        open_ = layers;
        code_ = MNNKV_OK;
        clear();
        const bool done = read(text);
        next_ = next;
        return done;
    }
#endif

    /// After a forward that failed in any layer: all layers are as the chat.
    void undo() {
#if STEP >= 3
        // Engine::undo: the layer whose step is open is aborted, rollback mends those that are closed
        if (open_ < layers) {
            mnnkv_cache view = caches_[open_].view();
            view.kv_len = begun_;
            ok(session_.abort(open_, view));
            caches_[open_].length = begun_;
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
        std::vector<float> p;  // softmax values of a query head
#if STEP >= 2
        // Engine::Lane
        mnnkv_status code;
        std::string error;
#endif
#if STEP >= 6
        // Engine::Lane
        std::vector<double> room;  // of block sums
#endif
    };

    const Model& model_;
    std::vector<Cache> caches_;
    std::vector<float> x_, queries_, attended_;
    Lane lanes_[threads];
    Token next_ = 0;
#if STEP >= 2
    // Engine, its members
    mnnkv::session session_;
    std::uint32_t open_ = layers, begun_ = 0;  // the layer whose step is open, and its length then
    mnnkv_status code_ = MNNKV_OK;             // of the last call
#endif
#if STEP >= 3
    // Engine, its members
    std::vector<std::uint32_t> places_[layers];  // the positions of a layer's keys, one for each token of the chat
#endif
};

}  // namespace engine

#endif
