// The bookkeeping between an engine's attention and mnnkv::session. Names no engine. README.md shows a host.
//
// C++11, needs neither exceptions nor RTTI.
//
//   model_session   the session of one model: numbers of layers, lines in the log, memory that malloc retains
//   layer_session   the steps of one layer, failed ones included
//   step_counts     an engine's counts of a step, from which history edits follow
//
// All calls of one model must come from one thread at a time, except layer_session::sum and attend.

#ifndef MNNKV_HOST_HPP
#define MNNKV_HOST_HPP

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <set>
#include <string>
#include <utility>
#include <vector>

#if defined(__GLIBC__) || defined(__ANDROID__)
#include <malloc.h>
#endif

#include "mnnkv.hpp"
#include "mnnkv_json.hpp"
#include "mnnkv_keys.hpp"

namespace mnnkv_host {

/// How a model_session is made.
struct model_config {
    /// A JSON object; mnnkv_session_create reads its keys.
    std::string json;
    std::uint32_t layers = 0, lanes = 1;
    /// kv_h2o_log_stats: one line per eviction.
    bool logs = false;
    /// The engine calls layer_session::attend where layer_session::attends.
    bool attends = false;
    /// What the files of its chats must be of: mnnkv_session_options.
    std::string fingerprint;
    /// Text of the engine, appended to the line "does" of mnnkv_session_report; may be empty.
    std::string also;
    /// Prints one line, given without a newline; NULL: nothing is printed.
    void (*print)(const char* line) = nullptr;
};

/// The session of one model.
class model_session {
public:
    /// Prints what the config does, one line, which for a budget waits until a layer has begun; and its warnings, one line
    /// each; those about steps follow. A refused config sets `refusal`.
    explicit model_session(const model_config& config) : model_session(config, true) {}

    /// Prints what is wrong with the keys of a config that switches nothing on. Returns why it is refused; "" if it is not.
    static std::string check(const model_config& config) { return model_session(config, false).refusal; }

    /// Opens a chat file beside the session's chat: in a session of the same config, which has no file of its own.
    mnnkv::status open_beside(const std::string& path, mnnkv::session& other) const {
        const mnnkv::status made = make(other, "{\"kv_memory_file\": \"\"}", config_.json);
        return made ? other.open(path.c_str()) : made;
    }

    /// A sentence about a layer, which most texts of the library name themselves.
    static std::string of_layer(std::uint32_t number, const std::string& text) {
        const std::string layer = "layer " + std::to_string(number);
        return text.find(layer) != std::string::npos ? text : layer + ": " + text;
    }

    void say(const std::string& line) const {
        if (config_.print != nullptr) {
            config_.print(("mnn-kv: " + line).c_str());
        }
    }

    /// Prints each text once in the life of the model.
    void say_once(const std::string& line) {
        if (printed_.insert(line).second) {
            say(line);
        }
    }

    /// What mnnkv_session_report writes; "" without a session.
    std::string report() const {
        std::string text;
        if (session) {
            (void)session.report(text);
        }
        return text;
    }

    /// A number of "memory" in the report; 0 without a budget and a file.
    std::uint64_t memory(const std::string& name) const {
        return static_cast<std::uint64_t>(json_number_of(json_member(report(), "memory"), name));
    }

    /// As mnnkv_session_save. `caches`: of the layers in use, by their numbers.
    mnnkv::status save(const std::string& path, std::vector<mnnkv_cache> caches) {
        caches.resize(config_.layers, mnnkv::make<mnnkv_cache>());
        return session.save(path.c_str(), caches.data(), config_.layers);
    }

    /// Buffers of caches were freed or replaced since the last forward.
    void buffers_changed() { stale_heap_ = true; }

    /// malloc returns to the system what it retains.
    void trim() {
        stale_heap_ = false;
#if defined(__GLIBC__)
        malloc_trim(0);
#elif defined(__ANDROID__) && defined(M_PURGE)
        mallopt(M_PURGE, 0);
#endif
    }

    mnnkv::session session;
    /// The reason for a missing session; "" if there is a session.
    std::string refusal;
    const bool logs;

private:
    friend class layer_session;

    model_session(const model_config& config, bool is_used) : logs(config.logs), config_(config), sums_(config.lanes) {
        // Scores of a prompt let the first eviction follow it, and run between its chunks.
        const mnnkv::status made = make(session, config.json, "{\"kv_h2o_prefill_queries\": 8}");
        if (!made) {
            refusal = std::string("the config is refused: ") + made.message();
            return;
        }
        if (is_used && memory("budget_bytes") == 0) {
            say_outlook();
        }
        print_warnings(config.json);
    }

    /// Makes a session of a config and its defaults, JSON objects.
    mnnkv::status make(mnnkv::session& made, const std::string& json, const std::string& defaults) const {
        mnnkv_session_options options = {};
        options.layers = config_.layers;
        options.lanes = config_.lanes;
        options.config_json = json.data();
        options.config_len = json.size();
        options.defaults_json = defaults.data();
        options.defaults_len = defaults.size();
        options.attends = config_.attends ? 1 : 0;
        options.fingerprint = config_.fingerprint.data();
        options.fingerprint_len = config_.fingerprint.size();
        return made.create(options);
    }

    void print_warnings(const std::string& json) {
        const std::vector<std::string> lines = warnings();
        for (const std::string& line : lines) {
            say_once(line);
            printed_.insert(words_of(line));
        }
        for (const std::string& fault : key_faults(json)) {
            // The session's line about the same key begins so, and has the key that may be meant.
            const auto is_said = [&fault](const std::string& line) { return line.find(fault) == 0; };
            if (std::none_of(lines.begin(), lines.end(), is_said)) {
                say_once(fault);
            }
        }
    }

    /// The first call prints what the config does.
    void say_outlook() {
        if (!is_said_) {
            is_said_ = true;
            std::string outlook;
            (void)json_text(json_member(report(), "does"), outlook);
            say(outlook + config_.also);
        }
    }

    /// The lowest number that no layer has.
    std::uint32_t take_number() {
        std::uint32_t number = 0;
        while (!taken_.insert(number).second) {
            ++number;
        }
        return number;
    }

    void return_number(std::uint32_t number) {
        (void)session.reset_layer(number);
        taken_.erase(number);
    }

    std::vector<std::string> warnings() const {
        std::vector<std::string> lines;
        for (const std::string& item : json_items(json_member(report(), "warnings"))) {
            lines.emplace_back();
            (void)json_text(item, lines.back());
        }
        return lines;
    }

    /// A line without its digits: the numbers in a warning about steps change while the chat goes on.
    static std::string words_of(std::string line) {
        const auto is_digit = [](char letter) { return letter >= '0' && letter <= '9'; };
        line.erase(std::remove_if(line.begin(), line.end(), is_digit), line.end());
        return line;
    }

    /// A step was opened: prints what is new to warn of.
    void see(const mnnkv_step& step) {
        if (step.warnings == seen_warnings_) {
            return;
        }
        seen_warnings_ = step.warnings;
        for (const std::string& line : warnings()) {
            if (printed_.insert(words_of(line)).second) {
                say(line);
            }
        }
    }

    /// A layer's step starts. A number that is not above the last one starts a forward: malloc returns to the system what it
    /// retains below a buffer in use, which of caches that grow in turn is nearly everything.
    void enter(std::uint32_t number) {
        if (number <= last_entered_ && stale_heap_) {
            trim();
        }
        last_entered_ = number;
    }

    /// The head that a lane sums: memory that grows with its tokens and is used again for the next head.
    struct lane_sums {
        mnnkv_block_sums head = mnnkv::make<mnnkv_block_sums>();
        std::vector<double> sums, factors;
        char apart[64];  // no cache line of two lanes
    };

    const model_config config_;
    std::vector<lane_sums> sums_;
    std::set<std::string> printed_;
    std::set<std::uint32_t> taken_;
    std::uint32_t last_entered_ = 0;
    /// mnnkv_step::warnings of the warnings that were printed.
    std::uint32_t seen_warnings_ = 0;
    bool stale_heap_ = false, is_said_ = false;
};

/// The counts of an engine before a step: of `previous` tokens the last `remove` go, except the ranges (offset, length)
/// in `reserve`, whose offsets start at the first token that goes; `add` tokens come. `done`: forwards that the engine has
/// counted, or another number that changes with each. A step with the `done` of the last one follows a failure. It is first,
/// so that lines without it do not compile.
struct step_counts {
    std::size_t done, previous, remove, add;
    const int* reserve;
    int n_reserve;
};

/// The steps of one layer of a model: begin (or clear and begin_cleared), sum, end. The next begin or clear
/// closes a step that the engine left before end.
class layer_session {
public:
    /// Takes the lowest free number: layers have the order in which they are made. `model` must live longer.
    explicit layer_session(model_session& model) : model_(model), number_(model.take_number()) {}
    ~layer_session() { model_.return_number(number_); }
    layer_session(const layer_session&) = delete;
    layer_session& operator=(const layer_session&) = delete;

    std::uint32_t number() const { return number_; }

    /// The number is one of the session's layers.
    bool is_counted() const {
        std::uint32_t logical = 0, physical = 0;
        return static_cast<bool>(model_.session.lengths(number_, logical, physical));
    }

    /// The layer is open and scored: tiles are of use.
    bool takes_tiles() const { return open_ && step_.scored_rows > 0; }

    /// The engine clears the cache: drops the layer's tokens, and its open step. begin_cleared may follow.
    void clear(const step_counts& counts) {
        open_ = false;
        step_.rows = static_cast<std::uint32_t>(counts.add);
        model_.enter(number_);
        if (!has_failed(counts)) {
            last_.before = lengths().first;
        }
        (void)model_.session.reset_layer(number_);
        last_.is_known = true;
        last_.done = counts.done;
        last_.kept.clear();
    }

    /// Opens the first step of a cleared cache, once there is one. cache.kv_len is not read.
    mnnkv::status begin_cleared(mnnkv_cache cache) {
        cache.kv_len = 0;
        return open(cache);
    }

    /// Opens a step: edits the history, restores stored tokens and applies the planned eviction. cache.kv_len: tokens
    /// in the cache, those of a step that failed included; set to the length after which the engine appends. On
    /// failure (out of memory) no token is lost, and attention must not run. INVALID_ARGUMENT: if the edit keeps tokens that
    /// a failed step has removed here; only clear helps then.
    mnnkv::status begin(const step_counts& counts, mnnkv_cache& cache) {
        step_.rows = static_cast<std::uint32_t>(counts.add);
        model_.enter(number_);
        settle(counts, cache);
        const mnnkv::status edited = edit(counts, cache);
        if (!edited) {
            return edited;
        }
        const std::uint32_t before = cache.kv_len;
        const mnnkv::status begun = open(cache);
        if (begun && model_.logs && cache.kv_len < before) {
            model_.say("layer " + std::to_string(number_) + " evicted " + std::to_string(before - cache.kv_len) +
                       " of " + std::to_string(before) + " tokens");
        }
        return begun;
    }

    /// Edits the history between steps, for an engine whose counts have no `remove`: as mnnkv_session_keep. Aborts an
    /// open step. The engine's next counts have the new length as `previous`.
    mnnkv::status keep(const std::int32_t* logical_pairs, std::size_t n_pairs, mnnkv_cache& cache) {
        if (open_) {
            close(true, cache);
        }
        last_.is_known = false;
        return model_.session.keep(number_, logical_pairs, n_pairs, cache);
    }

    /// Makes the layer ready for a save: it is as the engine counts it. counts: the engine's before its next step. cache: as for
    /// begin. INVALID_ARGUMENT: if the layer has made the edit of a step that failed, which the engine still has to repeat.
    mnnkv::status ready(const step_counts& counts, mnnkv_cache& cache) {
        settle(counts, cache);
        if (!has_failed(counts)) {
            return MNNKV_OK;
        }
        const ranges all = all_of(last_.before);
        if (last_.kept != all) {
            return mnnkv::status(MNNKV_INVALID_ARGUMENT, &repeat_first);
        }
        return lengths().first > last_.before ? keep(all, cache) : MNNKV_OK;  // the tokens of the step go
    }

    /// The session has loaded the layer from a file.
    void loaded() { last_.is_known = false; }

    /// Tokens in the cache between steps.
    std::uint32_t length() const { return lengths().second; }

    /// Closes the step that the engine left, if there is one.
    void settle(const step_counts& counts, mnnkv_cache& cache) {
        if (open_) {
            close(has_failed(counts), cache);
        }
    }

    /// A softmax tile of the open step. Several threads may call this at once, each with its own lane. The sums are made
    /// here, where the tile is near, and handed over with the head's last tile.
    /// `given` is of one query head, and its rows are all rows of the step.
    void sum(std::uint32_t lane, const mnnkv_score_tile& given) {
        if (!takes_tiles()) {
            return;
        }
        if (lane >= model_.sums_.size()) {
            refused_.store(true, std::memory_order_relaxed);
            return;
        }
        model_session::lane_sums& own = model_.sums_[lane];
        if ((given.flags & MNNKV_TILE_FIRST) != 0) {
            start(own, given);
        }
        if (own.head.rows == 0) {
            return;
        }
        const std::size_t blocks = given.tokens / own.head.block_tokens + own.head.used + 2;
        if (own.sums.size() < blocks * own.head.rows) {
            own.sums.resize(2 * blocks * own.head.rows);
            own.head.sums = own.sums.data();
            own.head.blocks = static_cast<std::uint32_t>(own.sums.size() / own.head.rows);
        }
        mnnkv_sum_tile(&own.head, &given);
        if ((given.flags & MNNKV_TILE_LAST) != 0 && !model_.session.block_sums(number_, lane, own.head)) {
            refused_.store(true, std::memory_order_relaxed);
        }
    }

    /// The open step is attended to by attend, in place of the engine's attention.
    bool attends() const { return open_ && step_.attends != 0; }

    /// The last step was attended to by attend, and is closed: so are rows of layers that read this one's cache.
    bool has_attended() const { return !open_ && step_.attends != 0; }

    /// A part of the attention of the open step, or of another layer's rows once it is closed, as mnnkv_session_attend. Several
    /// threads may call this at once. `end`, or `end_reader`, reports a failure.
    void attend(std::uint32_t part, std::uint32_t parts, const mnnkv_cache& cache, const mnnkv_attend& step) {
        const mnnkv::status attended = model_.session.attend(number_, part, parts, cache, step);
        if (!attended) {
            fail(attended.code(), attended.message());
        }
    }

    /// The open step's attention has failed, which `end` reports: the first reason is kept. Any thread.
    void fail(mnnkv_status code, const std::string& why) {
        if (!failed_.exchange(true)) {
            failure_code_ = code;
            failure_text_ = why;
        }
    }

    /// Closes the open step after attention of `heads` query heads, `queries` rows each. Where a tile was refused the
    /// step keeps its tokens and changes no score, which is printed. Returns the code of the failure, with the reason
    /// printed, if a part of attention failed: the engine's step has failed, and the next begin
    /// mends it. No token is lost.
    mnnkv_status end(std::uint32_t heads, std::uint32_t queries, mnnkv_cache& cache) {
        if (!open_) {
            return MNNKV_OK;
        }
        if (failed_.load(std::memory_order_acquire)) {
            return failed(failure_code_, failure_text_);
        }
        std::string why = "a tile was refused";
        if (!refused_.load(std::memory_order_relaxed)) {
            const mnnkv::status ended = model_.session.end(number_, heads, queries, cache);
            if (ended) {
                open_ = false;
                return MNNKV_OK;
            }
            why = ended.message();
            if (step_.attends != 0) {
                // The output is not whole. The next begin aborts the step.
                return failed(ended.code(), why);
            }
        }
        const mnnkv::status ended = model_.session.end(number_, 0, 0, cache);
        if (!ended) {
            return failed(ended.code(), ended.message());
        }
        open_ = false;
        model_.say_once("a step goes without scores: " + why);
        return MNNKV_OK;
    }

    /// Ends the attention of rows of another layer. Returns the code of a failure, with the reason printed.
    mnnkv_status end_reader() {
        return failed_.exchange(false) ? failed(failure_code_, failure_text_) : MNNKV_OK;
    }

    /// As mnnkv_session_window, between steps.
    mnnkv::status window(std::uint32_t tokens, std::uint32_t rollback) {
        return model_.session.window(number_, tokens, rollback);
    }

private:
    /// Begins a head; without rows where none of the step's rows count.
    void start(model_session::lane_sums& own, const mnnkv_score_tile& first) {
        mnnkv_block_sums& head = own.head;
        head.heads = 1;
        head.block_tokens = step_.block_tokens;
        head.flags = MNNKV_TILE_FIRST | MNNKV_TILE_LAST;
        head.rows = step_.scored_rows;
        if (first.queries != step_.rows) {
            // Not the step that begin was told of.
            refused_.store(true, std::memory_order_relaxed);
            head.rows = 0;
        }
        head.used = 0;
        if (own.factors.size() < head.rows) {
            own.factors.resize(head.rows);
        }
        head.factors = own.factors.data();
        head.sums = own.sums.data();
        head.blocks = head.rows == 0 ? 0 : static_cast<std::uint32_t>(own.sums.size() / head.rows);
    }

    mnnkv::status open(mnnkv_cache& cache) {
        refused_.store(false, std::memory_order_relaxed);
        failed_.store(false, std::memory_order_relaxed);
        const mnnkv::status begun = model_.session.begin(number_, cache, step_);
        open_ = static_cast<bool>(begun);
        if (open_) {
            model_.say_outlook();
            model_.see(step_);
        }
        return begun;
    }

    /// The engine has not counted the forward of the last step: it failed in this layer or another one.
    bool has_failed(const step_counts& counts) const { return last_.is_known && counts.done == last_.done; }

    /// Closes a step that the engine left. Tokens that the engine does not count are not part of the cache.
    void close(bool failed, mnnkv_cache& cache) {
        open_ = false;
        if (failed) {
            cache.kv_len = step_.kv_len;
            (void)model_.session.abort(number_, cache);
        } else {
            (void)model_.session.end(number_, 0, 0, cache);
        }
    }

    /// Ranges of tokens, (first, count): ascending, none beside the next.
    typedef std::vector<std::pair<std::size_t, std::size_t>> ranges;

    /// After a failed step both edits are of the tokens before it: what is left of them is edited. The step's tokens go.
    mnnkv::status edit(const step_counts& counts, mnnkv_cache& cache) {
        const bool failed = has_failed(counts);
        const std::size_t before = failed ? last_.before : lengths().first;
        find_kept(counts, before, wanted_);
        if (failed && !find(wanted_, last_.kept, left_)) {
            return mnnkv::status(MNNKV_INVALID_ARGUMENT, &tokens_gone);
        }
        const mnnkv::status kept = keep(failed ? left_ : wanted_, cache);
        if (kept) {
            last_.is_known = true;
            last_.done = counts.done;
            last_.before = before;
            last_.kept.swap(wanted_);
        }
        return kept;
    }

    /// The tokens that an edit keeps of `length`.
    static void find_kept(const step_counts& counts, std::size_t length, ranges& kept) {
        const std::size_t base = length - std::min(length, counts.remove);
        kept.clear();
        if (base > 0) {
            kept.emplace_back(0, base);
        }
        for (int i = 0; i < counts.n_reserve; ++i) {
            const std::size_t from = base + std::min(at_least_0(counts.reserve[2 * i]), length - base);
            const std::size_t count = std::min(at_least_0(counts.reserve[2 * i + 1]), length - from);
            if (count > 0 && !kept.empty() && kept.back().first + kept.back().second == from) {
                kept.back().second += count;
            } else if (count > 0) {
                kept.emplace_back(from, count);
            }
        }
    }

    static ranges all_of(std::size_t length) { return length > 0 ? ranges(1, {0, length}) : ranges(); }

    /// Where ranges are among the tokens that were kept; false if some are not.
    static bool find(const ranges& wanted, const ranges& kept, ranges& found) {
        found.clear();
        for (const auto& part : wanted) {
            std::size_t at = 0, next = 0;
            while (next < kept.size() && kept[next].first + kept[next].second <= part.first) {
                at += kept[next++].second;
            }
            if (next == kept.size() || part.first < kept[next].first ||
                part.first + part.second > kept[next].first + kept[next].second) {
                return false;
            }
            found.emplace_back(at + part.first - kept[next].first, part.second);
        }
        return true;
    }

    mnnkv::status keep(const ranges& kept, mnnkv_cache& cache) {
        pairs_.clear();
        for (const auto& part : kept) {
            pairs_.push_back(static_cast<std::int32_t>(part.first));
            pairs_.push_back(static_cast<std::int32_t>(part.second));
        }
        return model_.session.keep(number_, pairs_.data(), kept.size(), cache);
    }

    /// Prints why the layer has failed, and returns the code.
    mnnkv_status failed(mnnkv_status code, const std::string& why) const {
        model_.say(model_session::of_layer(number_, why));
        return code;
    }

    static const char* tokens_gone() {
        return "the edit keeps tokens that a failed step has removed: the chat must be cleared";
    }
    static const char* repeat_first() { return "the last step failed after its edit: repeat it first"; }

    static std::size_t at_least_0(int count) { return static_cast<std::size_t>(std::max(count, 0)); }

    /// The chat's tokens and the cache's.
    std::pair<std::uint32_t, std::uint32_t> lengths() const {
        std::uint32_t logical = 0, physical = 0;
        (void)model_.session.lengths(number_, logical, physical);
        return {logical, physical};
    }

    model_session& model_;
    const std::uint32_t number_;
    /// Between begin and end of the session.
    bool open_ = false;
    /// What the last begin was told and said.
    mnnkv_step step_ = mnnkv::make<mnnkv_step>();
    /// A tile of this step was refused.
    std::atomic<bool> refused_{false};
    /// A part of this step's attention failed, and the first reason. Threads meet before `end`.
    std::atomic<bool> failed_{false};
    mnnkv_status failure_code_ = MNNKV_OK;
    std::string failure_text_;
    /// The last step's edit: the layer's tokens before it, and those that it kept.
    struct {
        bool is_known;
        std::size_t done, before;
        ranges kept;
    } last_ = {false, 0, 0, {}};
    /// Room of edits, so that a step allocates nothing.
    ranges wanted_, left_;
    std::vector<std::int32_t> pairs_;
};

/// Returns pages of a cache after its kv_len to the system; they read as zero.
inline void release_tail(const mnnkv_cache& cache) {
    std::uint64_t bytes = 0;
    (void)mnnkv_kv_release(cache.layout, cache.key, cache.value, cache.kv_len, cache.layout->max_tokens - cache.kv_len,
                           &bytes);
}

}  // namespace mnnkv_host

#endif  // MNNKV_HOST_HPP
