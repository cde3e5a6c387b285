set terminal pngcairo size 1100,552 font 'sans,10'
set output 'small.png'
set title 'small allreduces'
set logscale x
set xrange [0.120333:70208.7]
set yrange [-0.7:17.7]
set xlabel 'µs, less is better'
set grid xtics
set key off
set style fill solid 0.8
plot 'small.dat' using 3:0:2:3:($0-0.35):($0+0.35):ytic(1) with boxxyerrorbars lc rgb '#4477aa', \
     '' using 3:0:4 with labels left offset 0.5,0
