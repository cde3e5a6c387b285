/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/hvdrun/build.h"

#include "base/clock.h"
#include "base/status.h"
#include "hvd/hvd_admin.h"
#include "tools/common/ask.h"
#include "tools/common/can.h"

#include <stdlib.h>
#include <string.h>

#define HVDD_NS   (5 * HVI_NS_SEC)
#define ANSWER_NS (20 * HVI_NS_SEC) /* a Python on a slow file system, not one that hangs */

static const struct {
    const char *shown, *module;
} frameworks[RUN_BUILD_FRAMEWORKS] = {
    {"TensorFlow", "tensorflow"}, {"PyTorch", "torch"}, {"MXNet", "mxnet"}};

/* Prints the interpreter, and each module given that is there and has a binding in the package hvd.
 * Finders are asked and nothing is imported; a directory that happens to have the name (its spec
 * has no origin) does not count, nor does the current one. */
static const char question[] = "import sys\n"
                               "sys.path[:] = [place for place in sys.path if place]\n"
                               "def find(name, places=None):\n"
                               "    for finder in sys.meta_path:\n"
                               "        spec = finder.find_spec(name, places)\n"
                               "        if spec is not None:\n"
                               "            return spec if spec.origin else None\n"
                               "hvd = find('hvd')\n"
                               "places = hvd.submodule_search_locations if hvd else None\n"
                               "print(sys.executable)\n"
                               "for name in sys.argv[1:]:\n"
                               "    if places and find('hvd.' + name, places) and find(name):\n"
                               "        print(name)\n";

static void take_answer(char *answer, struct run_build *build)
{
    char *rest;
    const char *line = strtok_r(answer, "\n", &rest);
    if (line != NULL)
        snprintf(build->python, sizeof build->python, "%s", line);
    while ((line = strtok_r(NULL, "\n", &rest)) != NULL)
        for (size_t i = 0; i < RUN_BUILD_FRAMEWORKS; i++)
            build->frameworks[i] |= strcmp(line, frameworks[i].module) == 0;
}

static const char *ask_what_workers_find(const char *address, char *answer_p, size_t size)
{
    struct hvd_admin *admin = NULL;
    struct hvd_admin_request request;
    struct hvd_admin_answer *reply = NULL;
    struct can_of of = {.program = NULL};
    hvd_admin_request_init(&request, HVD_ADMIN_STATUS);
    if (hvd_admin_open(address, &admin) == HVI_OK)
        (void)hvd_admin_ask(admin, &request, (int64_t)HVDD_NS, &reply);
    if (reply != NULL && reply->daemon != NULL)
        of = (struct can_of){reply->daemon->gpu_program, reply->daemon->gpu_kernels,
                             reply->daemon->gpu_library_path};
    const char *why = can_ask(&of, answer_p, size);
    hvd_admin_answer_free(reply);
    hvd_admin_close(admin);
    return why;
}

bool run_build_has_nccl(const char *address)
{
    char answer[8192];
    return ask_what_workers_find(address, answer, sizeof answer) == NULL &&
           ask_number(answer, "kernels", NULL) > 0 && ask_number(answer, "driver", NULL) > 0 &&
           ask_number(answer, "nccl", NULL) > 0;
}

int run_build_ask(struct run_build *build_p, char *text_p, size_t text_size)
{
    char answer[1024];
    const char *named = getenv("HVDRUN_PYTHON");
    const char *python = named != NULL && named[0] != '\0' ? named : "python3";
    char *argv[4 + RUN_BUILD_FRAMEWORKS] = {(char *)(uintptr_t)python, (char[]){"-c"},
                                            (char *)(uintptr_t)question};
    for (size_t i = 0; i < RUN_BUILD_FRAMEWORKS; i++)
        argv[3 + i] = (char *)(uintptr_t)frameworks[i].module;
    *build_p = (struct run_build){.frameworks = {false}};
    snprintf(build_p->python, sizeof build_p->python, "%s", python);
    const char *why = ask_program(argv, ANSWER_NS, answer, sizeof answer);
    if (why == NULL) {
        take_answer(answer, build_p);
        return 0;
    }
    snprintf(text_p, text_size,
             "cannot ask %s which frameworks there are: %s; name a Python in HVDRUN_PYTHON", python,
             why);
    return -1;
}

void run_build_print(FILE *out, const char *name, const char *version,
                     const struct run_build *build)
{
    fprintf(out, "%s v%s:\n\nAvailable Frameworks:\n", name, version);
    for (size_t i = 0; i < RUN_BUILD_FRAMEWORKS; i++)
        fprintf(out, "    [%c] %s\n", build->frameworks[i] ? 'X' : ' ', frameworks[i].shown);
    fprintf(out,
            "\n"
            "Available Controllers:\n"
            "    [ ] MPI\n"
            "    [ ] Gloo\n"
            "    [X] hvdd\n"
            "\n"
            "Available Tensor Operations:\n"
            "    [%c] NCCL\n"
            "    [ ] DDL\n"
            "    [ ] CCL\n"
            "    [ ] MPI\n"
            "    [ ] Gloo\n"
            "    [X] hvdd\n",
            build->has_nccl ? 'X' : ' ');
}
