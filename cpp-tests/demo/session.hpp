// mnn-kv's calls in a host, or none of them: what a patch adds to an engine.

#ifndef MNNKV_DEMO_SESSION_HPP
#define MNNKV_DEMO_SESSION_HPP

#include "packed_cache.hpp"

#include "mnnkv_json.hpp"

#include <string>
#include <vector>

namespace demo {

inline void require(mnnkv::status status, const char* call) {
    if (!status) {
        std::fprintf(stderr, "%s: %s: %s\n", call, status.name(), status.message());
        std::exit(1);
    }
}

class Session {
public:
    /// config: JSON; "": no mnn-kv. Attention runs on one thread.
    Session(const std::string& config, std::uint32_t layers) {
        if (!config.empty()) {
            mnnkv_session_options options = {};
            options.layers = layers;
            options.config_json = config.data();
            options.config_len = config.size();
            options.attends = 1;  // it calls attend where the session asks for it
            require(session_.create(options), "session");
        }
    }

    bool on() const { return static_cast<bool>(session_); }

    /// Before new tokens are appended: stored tokens come back, and others leave the cache, as the config asks.
    void begin(std::uint32_t layer, PackedCache& cache) {
        if (on()) {
            mnnkv_cache view = cache.view();
            step_.rows = 1;
            require(session_.begin(layer, view, step_), "begin");
            cache.set_length(view.kv_len);
            sums_.block_tokens = step_.block_tokens;
        }
    }

    /// True where attend takes the place of the host's attention: some tokens of the open layer are not in its cache.
    bool attends() const { return on() && step_.attends != 0; }

    /// The attention of the newest token, which is in the cache, over the whole chat: [query head][dim]. Queries have
    /// their scale.
    void attend(std::uint32_t layer, const PackedCache& cache, std::uint32_t heads, const float* queries, float* out) {
        mnnkv_attend step = mnnkv::make<mnnkv_attend>();
        step.dtype = MNNKV_DTYPE_F32;
        step.heads = heads;
        step.rows = 1;
        step.head_dim = cache.layout().head_dim;
        step.scale = 1;
        step.queries = queries;
        step.output = out;
        require(session_.attend(layer, 0, 1, cache.view(), step), "attend");  // part 0 of 1: the only thread
    }

    /// Each softmax tile of a step of one row, between begin and end: sums it here, where it is near, and hands over the
    /// sums with the last.
    void sums(std::uint32_t layer, const mnnkv_score_tile& tile) {
        if (step_.scored_rows == 0) {
            return;
        }
        if (sums_.rows != tile.queries) {
            size_sums(tile.queries);
        }
        mnnkv_sum_tile(&sums_, &tile);
        if ((tile.flags & MNNKV_TILE_LAST) != 0) {
            require(session_.block_sums(layer, 0, sums_), "block_sums");  // lane 0: the only thread
        }
    }

    /// After attention.
    void end(std::uint32_t layer, PackedCache& cache, std::uint32_t heads, std::uint32_t queries) {
        if (on()) {
            mnnkv_cache view = cache.view();
            require(session_.end(layer, heads, queries, view), "end");
        }
    }

    /// Saves the chat to the file of its config. Returns the bytes written.
    std::uint64_t save(const std::vector<PackedCache>& caches) {
        std::vector<mnnkv_cache> views;
        for (const PackedCache& cache : caches) {
            views.push_back(cache.view());
        }
        std::uint64_t written = 0;
        require(session_.save(nullptr, views.data(), static_cast<std::uint32_t>(views.size()), &written), "save");
        return written;
    }

    /// Goes on with the chat that was saved: begin writes raw tokens to these caches.
    void open(std::vector<PackedCache>& caches) {
        require(session_.open(), "open");
        for (std::uint32_t layer = 0; layer < caches.size(); ++layer) {
            std::uint32_t logical = 0, physical = 0;
            require(session_.lengths(layer, logical, physical), "lengths");
            caches[layer].set_length(physical);
        }
    }

    /// What the config does, warnings and numbers as JSON (docs/report.md); "" without mnn-kv.
    std::string report() const {
        std::string text;
        if (on()) {
            require(session_.report(text), "report");
        }
        return text;
    }

    /// The tokens of the chat that a layer of `length` tokens holds: pairs (first, count).
    std::vector<std::int32_t> positions(std::uint32_t layer, std::uint32_t length) const {
        std::vector<std::int32_t> pairs = {0, static_cast<std::int32_t>(length)};
        if (on()) {
            std::size_t n_pairs = 0;
            pairs.resize(2 * length);
            require(session_.positions(layer, MNNKV_IN_CACHE, pairs.data(), length, n_pairs), "positions");
            pairs.resize(2 * n_pairs);
        }
        return pairs;
    }

private:
    /// Makes room for tiles of so many heads of one row.
    void size_sums(std::uint32_t heads) {
        sums_.blocks = 1024;  // an engine takes them from its longest chat
        room_.resize((std::size_t(sums_.blocks) + 1) * heads);
        sums_.flags = MNNKV_TILE_FIRST | MNNKV_TILE_LAST;
        sums_.heads = sums_.rows = heads;
        sums_.factors = room_.data();
        sums_.sums = room_.data() + heads;
    }

    mnnkv::session session_;
    mnnkv_block_sums sums_ = mnnkv::make<mnnkv_block_sums>();
    std::vector<double> room_;
    mnnkv_step step_ = mnnkv::make<mnnkv_step>();  // the open step
};

}  // namespace demo

#endif
