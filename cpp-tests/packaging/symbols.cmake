# The names that LIBRARY exports are exactly the functions that HEADERS declare.
include("${CMAKE_CURRENT_LIST_DIR}/common.cmake")

# The preprocessor removes comments.
string(REPLACE "," ";" headers "${HEADERS}")
run("${CC}" -E -P -DMNNKV_EXPERIMENTAL ${headers})
# A bracket would hold elements of a list together.
string(REGEX REPLACE "[][]" " " run_output "${run_output}")
# A function's name is followed by its parameters, not by (* as a type before a pointer to a function.
string(REGEX MATCHALL "[^A-Za-z0-9_]mnnkv_[A-Za-z0-9_]+[ \n]*\\([^*]" declared "${run_output}")
list(TRANSFORM declared REPLACE "^[^m]|[ \n]*\\(.$" "")
list(REMOVE_DUPLICATES declared)
# Inline functions of the headers are compiled by hosts.
string(REGEX MATCHALL "static inline [a-z0-9_]+ mnnkv_[a-z0-9_]+" inline "${run_output}")
list(TRANSFORM inline REPLACE "^.* " "")
list(REMOVE_ITEM declared ${inline})
list(LENGTH declared count)
if(count LESS 10)
  message(FATAL_ERROR "only ${count} functions found in ${HEADERS}: ${declared}")
endif()

set(table -g)
if(DYNAMIC)
  set(table -D)
endif()
read_symbols("${LIBRARY}" ${table})
set(others ${symbols})
list(FILTER others EXCLUDE REGEX " T$")
if(others)
  message(FATAL_ERROR "${LIBRARY} defines names that are not functions: ${others}")
endif()
list(TRANSFORM symbols REPLACE " T$" "")
expect_same("names in ${LIBRARY} against functions in ${HEADERS}" "${symbols}" "${declared}")

# No symbol of the bundled zstd is undefined: a host could define it, as it could zstd's weak trace hooks.
run("${NM}" ${table} --undefined-only -P "${LIBRARY}")
string(REGEX MATCHALL "[^\n]*(ZSTD|HUF|FSE|XXH|mnnkv)_[^\n]*" open "${run_output}")
if(open)
  message(FATAL_ERROR "${LIBRARY} needs from its host: ${open}")
endif()
