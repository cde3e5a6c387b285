# cmake -DHVDD= -DOUT=file -P example.cmake: the default configuration, every line of it commented out.
execute_process(COMMAND ${HVDD} --config=/dev/null --print-config OUTPUT_VARIABLE text COMMAND_ERROR_IS_FATAL ANY)
string(REGEX REPLACE " +\n" "\n" text "${text}")
string(REGEX REPLACE "\n([a-z])" "\n#\\1" text "${text}")
string(REGEX REPLACE "\n#" "\n\n#" text "${text}")
string(REGEX REPLACE "\n\n#(A change|[a-z])" "\n#\\1" text "${text}")
string(REGEX REPLACE "\n\n# A change" "\n# A change" text "${text}")
file(WRITE ${OUT} "# hvdd.conf(5): copy to /etc/hvdd/hvdd.conf and change. The values are the defaults.\n${text}")
