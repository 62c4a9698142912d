// Commands of a program for its chat, which come as JSON through an engine's config, and the file of a chat.
//
// C++11, needs neither exceptions nor RTTI.
//
//   chat_command     a config object as a command
//   running_command  the command that runs, which another thread may interrupt
//   chat_state       a chat without the tokens of its layers
//   chat_file        a snapshot that is read, or saved to
//   known_chats      the files that a chat was saved to or loaded from

#ifndef MNNKV_CHAT_HPP
#define MNNKV_CHAT_HPP

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "mnnkv.hpp"
#include "mnnkv_files.hpp"
#include "mnnkv_json.hpp"

namespace mnnkv_host {

/// What to do about a file that a save must not go to.
inline const char* overwrite_hint() { return "; \"kv_overwrite\": true beside kv_save replaces it"; }

/// The keys of commands, for texts.
inline const char* command_keys() { return "kv_park, kv_save, kv_load and kv_trim_mb"; }

/// A config object with just one of the keys kv_park, kv_save, kv_load and kv_trim_mb; kv_overwrite may stand beside kv_save.
struct chat_command {
    enum { none, park, interrupt, save, load, trim } what = none;
    /// park: 1 to 9, 0 is the library's choice.
    int effort = 0;
    /// trim: the budget in millions of bytes.
    double megabytes = 0;
    /// save, load
    std::string path;
    /// save: also to a file that holds another chat.
    bool overwrites = false;
    /// Why the command is refused; "" if it is not.
    std::string refusal;

    /// none, without a refusal, if `content` has none of the keys.
    static chat_command read(const std::string& content) {
        chat_command command;
        const auto members = json_members(content);
        std::size_t extra = 0;
        for (const auto& member : members) {
            const std::string &key = member.first, &value = member.second;
            double effort = 0;
            if (key == "kv_park") {
                const bool is_effort = json_number(value, effort) && effort >= 1 && effort <= 9 &&
                                       effort == static_cast<int>(effort);
                command.what = value == "false" ? interrupt : park;
                command.effort = static_cast<int>(effort);
                if (!is_effort && value != "true" && value != "false") {
                    command.refusal = "kv_park is " + value + "; true, false or 1 to 9 expected";
                }
            } else if (key == "kv_trim_mb") {
                command.what = trim;
                if (!json_number(value, command.megabytes)) {
                    command.refusal = "kv_trim_mb is " + value + "; a number of 0 or more expected";
                }
            } else if (key == "kv_save" || key == "kv_load") {
                command.what = key == "kv_save" ? save : load;
                if (!json_path(value, command.path)) {
                    command.refusal = key + " is " + value + "; the path of a file expected, in UTF-8";
                }
            } else if (key == "kv_overwrite") {
                command.overwrites = value == "true";
                extra = 1;
                if (value != "true" && value != "false") {
                    command.refusal = "kv_overwrite is " + value + "; true or false expected";
                }
            }
        }
        if (command.what != none && members.size() > 1 + (command.what == save ? extra : 0)) {
            command.refusal = std::string(command_keys()) + " stand alone, but for kv_overwrite beside kv_save; " +
                              std::to_string(members.size()) + " keys are given";
        }
        return command;
    }
};

/// The command that runs on a model's session. interrupt may come from any thread, at any time, and needs no symbol of the
/// library.
class running_command {
public:
    void start(mnnkv::session& session) {
        const std::lock_guard<std::mutex> guard(mutex_);
        interrupts_ = [&session](bool interrupted) { (void)session.interrupt(interrupted); };
        interrupted_ = false;
    }

    /// Returns whether the command was interrupted.
    bool stop() {
        const std::lock_guard<std::mutex> guard(mutex_);
        interrupts_(false);
        interrupts_ = nullptr;
        return interrupted_;
    }

    /// Without a command nothing happens.
    void interrupt() {
        const std::lock_guard<std::mutex> guard(mutex_);
        if (interrupts_) {
            interrupted_ = true;
            interrupts_(true);
        }
    }

private:
    std::mutex mutex_;
    std::function<void(bool)> interrupts_;
    bool interrupted_ = false;
};

/// The parts of a chat beside the tokens of its layers: sections of its file, of little-endian numbers.
struct chat_state {
    /// Saves of this chat to its file, this one included.
    std::uint64_t saves = 0;
    /// The engine's counts before the next step, as step_counts.
    std::uint64_t previous = 0, remove = 0;
    std::vector<int> reserve;
    /// Positions that the next step's tokens follow.
    std::uint64_t positions = 0;
    std::uint64_t layers = 0;
    /// Of each layer the types of K and V, its KV heads and its dims.
    std::vector<int> shapes;
    std::vector<int> tokens;
    /// The engine's text of the prompt, and bytes of the adapter.
    std::string prompt, extra;

    mnnkv::status put(mnnkv::snapshot& to) const {
        std::string counts;
        for (const std::uint64_t number : {std::uint64_t(1), saves, layers, previous, remove, positions}) {
            write(counts, number, 8);
        }
        write(counts, reserve);
        std::string ids, sizes;
        write(ids, tokens);
        write(sizes, shapes);
        mnnkv::status done = to.put("chat.counts", counts.data(), counts.size());
        done = done ? to.put("chat.shapes", sizes.data(), sizes.size()) : done;
        done = done ? to.put("chat.tokens", ids.data(), ids.size()) : done;
        done = done ? to.put("chat.prompt", prompt.data(), prompt.size()) : done;
        return done ? to.put("chat.extra", extra.data(), extra.size()) : done;
    }

    /// What get says of a file to which no save has come to its end.
    static const char* unsaved() { return "the file has no finished save"; }

    /// Why the state of a file cannot be used; "" if it can.
    std::string get(const mnnkv::snapshot& from) {
        std::string counts, ids, sizes;
        mnnkv::status read = from.section("chat.counts", counts);
        read = read ? from.section("chat.shapes", sizes) : read;
        read = read ? from.section("chat.tokens", ids) : read;
        read = read ? from.section("chat.prompt", prompt) : read;
        read = read ? from.section("chat.extra", extra) : read;
        if (read.code() == MNNKV_NOT_FOUND) {
            return unsaved();
        }
        if (!read) {
            return read.message();
        }
        if (counts.size() < 48 || counts.size() % 8 != 0 || this->read(counts, 0, 8) != 1) {
            return "section chat.counts is of another version of mnn-kv";
        }
        saves = this->read(counts, 8, 8);
        layers = this->read(counts, 16, 8);
        previous = this->read(counts, 24, 8);
        remove = this->read(counts, 32, 8);
        positions = this->read(counts, 40, 8);
        reserve = words(counts, 48);
        shapes = words(sizes, 0);
        tokens = words(ids, 0);
        bool fits = previous <= INT32_MAX && remove <= previous && positions <= INT32_MAX && ids.size() % 4 == 0 &&
                    sizes.size() / 16 == layers && sizes.size() % 16 == 0;
        std::uint64_t end = 0;
        for (std::size_t at = 0; at < reserve.size(); at += 2) {
            fits = fits && reserve[at] >= 0 && reserve[at + 1] > 0 && static_cast<std::uint64_t>(reserve[at]) >= end;
            end = static_cast<std::uint64_t>(reserve[at]) + static_cast<std::uint64_t>(reserve[at + 1]);
        }
        return fits && end <= remove ? "" : "sections chat.counts and chat.tokens have numbers that no chat has";
    }

    /// A hash of all but `saves`, `shapes` and `extra`: two chats of the same length differ in their tokens or in their prompts.
    std::uint64_t hash() const {
        std::string numbers;
        for (const std::uint64_t number : {layers, previous, remove, positions}) {
            write(numbers, number, 8);
        }
        write(numbers, reserve);
        write(numbers, tokens);
        std::uint64_t hash = 0xCBF29CE484222325u;
        for (const char byte : numbers + prompt) {
            hash = (hash ^ static_cast<std::uint8_t>(byte)) * 0x100000001B3u;
        }
        return hash;
    }

private:
    static void write(std::string& to, std::uint64_t number, int bytes) {
        for (int i = 0; i < bytes; ++i) {
            to += static_cast<char>(number >> 8 * i & 0xFF);
        }
    }

    static void write(std::string& to, const std::vector<int>& numbers) {
        for (const int number : numbers) {
            write(to, static_cast<std::uint32_t>(number), 4);
        }
    }

    static std::uint64_t read(const std::string& from, std::size_t at, std::size_t bytes) {
        std::uint64_t number = 0;
        for (std::size_t i = bytes; i > 0; --i) {
            number = number << 8 | static_cast<std::uint8_t>(from[at + i - 1]);
        }
        return number;
    }

    static std::vector<int> words(const std::string& from, std::size_t at) {
        std::vector<int> numbers;
        for (; at + 4 <= from.size(); at += 4) {
            numbers.push_back(static_cast<int>(static_cast<std::uint32_t>(read(from, at, 4))));
        }
        return numbers;
    }
};

/// The fingerprint of a model: length, and a hash of the first and last 64 KiB, of each of its files.
inline std::string fingerprint_of(const std::vector<std::string>& files) {
    const std::streamoff part = 65536;
    std::string mark = "files";
    for (const std::string& path : files) {
        std::ifstream file(path, std::ios::binary | std::ios::ate);
        const std::streamoff size = file ? static_cast<std::streamoff>(file.tellg()) : 0;
        std::uint64_t hash = 0xCBF29CE484222325u;
        std::vector<char> bytes(static_cast<std::size_t>(std::min(size, part)));
        for (const std::streamoff from : {std::streamoff(0), std::max(size - part, std::streamoff(0))}) {
            if (!bytes.empty() && file.seekg(from) && file.read(bytes.data(), static_cast<std::streamoff>(bytes.size()))) {
                for (const char byte : bytes) {
                    hash = (hash ^ static_cast<std::uint8_t>(byte)) * 0x100000001B3u;
                }
            }
        }
        mark += " " + std::to_string(size) + ":" + std::to_string(hash);
    }
    return mark;
}

/// A snapshot that is read, or saved to. A file that a failed save made is removed.
class chat_file {
public:
    ~chat_file() {
        file_.reset();
        if (made_) {
            (void)remove_file(path_);
        }
    }

    mnnkv::status open_to_read(const std::string& path, const std::string& fingerprint) {
        return file_.open(options(path, fingerprint, MNNKV_SNAPSHOT_READ));
    }

    /// Makes the file if there is none.
    mnnkv::status open_to_save(const std::string& path, const std::string& fingerprint) {
        const mnnkv_snapshot_options given = options(path, fingerprint, MNNKV_SNAPSHOT_APPEND);
        mnnkv::status opened = file_.open(given);
        if (opened.code() == MNNKV_NOT_FOUND) {
            opened = file_.create(given);
            made_ = static_cast<bool>(opened);
            path_ = path;
        }
        return opened;
    }

    /// A file that takes the place of the one at `path` with the commit, whatever that has. Returns why it cannot; "" if
    /// it is open.
    std::string open_to_replace(const std::string& path, const std::string& fingerprint) {
        // The commit checks again. A refusal should not take as long as a save.
        std::string refusal = file_refusal(path);
        refusal = refusal.empty() ? remove_file(path + ".part") : refusal;
        if (!refusal.empty()) {
            return refusal;
        }
        replaced_ = path;
        path_ = path + ".part";
        const mnnkv::status opened = file_.create(options(path_, fingerprint, MNNKV_SNAPSHOT_APPEND));
        made_ = static_cast<bool>(opened);
        return made_ ? std::string() : std::string(opened.message());
    }

    /// Why the file has not the new state; "" if it has.
    std::string commit() {
        const mnnkv::status done = file_.commit();
        if (!done) {
            return done.message();
        }
        if (!replaced_.empty()) {
            file_.reset();
            const std::string refusal = replace_file(path_, replaced_);
            if (!refusal.empty()) {
                return refusal;
            }
        }
        made_ = false;
        return std::string();
    }

    mnnkv::snapshot& snapshot() { return file_; }

private:
    static mnnkv_snapshot_options options(const std::string& path, const std::string& fingerprint, std::uint32_t access) {
        mnnkv_snapshot_options given = mnnkv::make<mnnkv_snapshot_options>();
        given.abi_version = MNNKV_ABI_VERSION;
        given.path = path.c_str();
        given.fingerprint = fingerprint.data();
        given.fingerprint_len = fingerprint.size();
        given.access = access;
        return given;
    }

    mnnkv::snapshot file_;
    /// The path of the open file, and the path that it is renamed to; "" if it is not renamed.
    std::string path_, replaced_;
    bool made_ = false;
};

/// The states of files in which a chat was saved or loaded last. A save to a file in any other state would overwrite another
/// chat.
class known_chats {
public:
    /// The chat is another one from now on.
    void forget() { files_.clear(); }

    void remember(const std::string& path, const chat_state& state) { files_[path] = mark_of(state); }

    /// Why a save of `chat` to the file would overwrite another chat; "" if it would not. Counts the save in `chat`.
    std::string conflict(const std::string& path, chat_file& file, chat_state& chat) const {
        chat_state found;
        const std::string unread = found.get(file.snapshot());
        chat.saves = found.saves + 1;
        if (unread == chat_state::unsaved() || (unread.empty() && is_known(found, chat))) {
            return std::string();
        }
        return path + (!unread.empty()                      ? " cannot be read: " + unread
                       : files_.find(path) == files_.end() ? " holds another chat"
                                                            : " was saved by another chat since") +
               overwrite_hint();
    }

private:
    /// The saves of a chat, and its hash.
    typedef std::pair<std::uint64_t, std::uint64_t> mark;

    static mark mark_of(const chat_state& state) { return mark(state.saves, state.hash()); }

    /// The file has a state that this chat left, under any name, or a chat whose tokens this one goes on with.
    bool is_known(const chat_state& found, const chat_state& chat) const {
        const mark here = mark_of(found);
        const std::vector<int>&old = found.tokens, &now = chat.tokens;
        return std::any_of(files_.begin(), files_.end(),
                           [&here](const std::pair<const std::string, mark>& file) { return file.second == here; }) ||
               (!old.empty() && old.size() <= now.size() && std::equal(old.begin(), old.end(), now.begin()));
    }

    std::map<std::string, mark> files_;
};

}  // namespace mnnkv_host

#endif  // MNNKV_CHAT_HPP
